// How NCCL is found, and what is said where it cannot be used.
#include <string>

#include <gtest/gtest.h>

#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/nccl/library.hpp"

namespace lightcc::cuda::nccl_library_test {
namespace {

/// Puts the fake back as it was.
class NcclLibraryTest : public ::testing::Test {
 protected:
  void TearDown() override { fake::set_nccl(""); }
};

TEST_F(NcclLibraryTest, what_is_loaded_already_comes_first) {
  const auto library = NcclLibrary::open("/no/such/libnccl.so.2");
  ASSERT_TRUE(library.ok()) << library.status().message();
  EXPECT_EQ(library->version(), 22809);
  EXPECT_NE(library->call().all_reduce, nullptr);
  EXPECT_EQ(find_nccl("").value(), 22809);
}

TEST_F(NcclLibraryTest, an_old_one_is_refused_with_its_version) {
  fake::set_nccl("version=2804");
  EXPECT_EQ(NcclLibrary::open("").status().code(), ErrorCode::kUnimplemented);
  EXPECT_EQ(NcclLibrary::open("").status().message(),
            "no NCCL, because it is of version 2.8.4; needed is 2.20.5 or newer");
  fake::set_nccl("version=21903");
  EXPECT_EQ(find_nccl("").status().message(),
            "no NCCL, because it is of version 2.19.3; needed is 2.20.5 or newer");
}

TEST_F(NcclLibraryTest, an_error_says_the_call_and_blames_a_peer_only_where_nccl_does) {
  const auto library = NcclLibrary::open("");
  ASSERT_TRUE(library.ok());
  EXPECT_TRUE(library->check(kNcclSuccess, "ncclSend").ok());
  EXPECT_NE(library->check(kNcclInProgress, "ncclSend").message().find("NCCL_COMM_BLOCKING=0"),
            std::string::npos);
  const Status remote = library->check(kNcclRemoteError, "ncclSend");
  EXPECT_EQ(remote.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(remote.message(),
            "ncclSend: remote process exited or there was a network error (NCCL error 6)");
  EXPECT_EQ(library->check(kNcclInternalError, "ncclSend").code(), ErrorCode::kSystem);
}

TEST(NcclVersionText, has_one_digit_for_the_minor_version_before_2_9) {
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(nccl_version_text(20903), "2.9.3");
  EXPECT_EQ(nccl_version_text(23203), "2.32.3");
}

}  // namespace
}  // namespace lightcc::cuda::nccl_library_test
