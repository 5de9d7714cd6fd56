// The group of MPI over a fake library of one rank: what real MPI libraries seldom do.
#include "lightcc/collectives/mpi_group.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/mpi_comms.hpp"
#include "lightcc/collectives/mpi_library.hpp"

namespace lightcc {
namespace {

constexpr const char* kFake = LIGHTCC_TEST_FAKE_MPI;
constexpr std::uintptr_t kWorldOfMpich = 0x44000000;

template <typename T>
T& of_fake(const char* name) {
  static void* const library = ::dlopen(kFake, RTLD_NOW | RTLD_GLOBAL);
  return *static_cast<T*>(::dlsym(library, name));
}

class MpiGroupOnFake : public ::testing::Test {
 protected:
  void SetUp() override { reset(); }
  void TearDown() override { reset(); }

  static void reset() {
    of_fake<int>("fake_mpi_level") = 3;
    of_fake<int>("fake_mpi_code") = 0;
    of_fake<int>("fake_mpi_is_waiting") = 0;
    of_fake<int>("fake_mpi_comms") = 0;
  }

  void make() {
    auto made = MpiComms::make({.library = kFake, .comm = kWorldOfMpich, .ranks = {0}}, 7);
    ASSERT_TRUE(made.ok()) << made.status().message();
    comms_ = std::move(*made);
    const auto comm = comms_->ask({0});
    while (true) {
      const auto is_made = comm->is_made();
      ASSERT_TRUE(is_made.ok());
      if (*is_made) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    group_ = make_mpi_group(comm, 0, 1, {.chunk_bytes = 16});
  }

  std::unique_ptr<Work> sum_of(std::vector<float>& values, double postscale = 1.0) {
    auto* const data = reinterpret_cast<std::byte*>(values.data());
    return group_->allreduce({{.in = data, .out = data, .count = values.size()}},
                             {.dtype = DataType::kFloat32, .postscale = postscale});
  }

  std::unique_ptr<MpiComms> comms_;
  std::unique_ptr<Group> group_;
};

Result<Progress> run(Work& work) {
  while (true) {
    auto progress = work.advance();
    if (!progress.ok() || *progress == Progress::kDone) {
      return progress;
    }
  }
}

TEST_F(MpiGroupOnFake, rounds_cover_all_elements_once) {
  make();
  std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, 9};  // Three rounds of 16 bytes.
  ASSERT_TRUE(run(*sum_of(values, 2.0)).ok());
  EXPECT_EQ(values, (std::vector<float>{2, 4, 6, 8, 10, 12, 14, 16, 18}));
}

TEST_F(MpiGroupOnFake, an_error_names_call_and_rank_and_ends_the_group) {
  make();
  of_fake<int>("fake_mpi_code") = 15;
  std::vector<float> values = {1};
  const auto failed = run(*sum_of(values));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), ErrorCode::kSystem);
  EXPECT_EQ(failed.status().message(), "MPI_Iallreduce failed on rank 7: the fake's error 15");
  of_fake<int>("fake_mpi_code") = 0;
  EXPECT_EQ(run(*group_->barrier()).status().message(), failed.status().message());
}

TEST_F(MpiGroupOnFake, a_dropped_work_leaves_its_memory_to_mpi) {
  make();
  of_fake<int>("fake_mpi_is_waiting") = 1;
  std::vector<float> values = {1, 2, 3, 4};
  auto work = sum_of(values);
  const auto progress = work->advance();
  ASSERT_TRUE(progress.ok());
  EXPECT_EQ(*progress, Progress::kMoved);
  work.reset();
  // MPI goes on with it; a sanitizer would tell of memory that is gone.
  std::memset(of_fake<void*>("fake_mpi_memory"), 0xff, 16);
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(run(*sum_of(values)).status().code(), ErrorCode::kShutDown);
  group_.reset();
  comms_.reset();
  EXPECT_EQ(of_fake<int>("fake_mpi_comms"), 1);  // That of the group; the world's is freed.
}

TEST_F(MpiGroupOnFake, communicators_are_freed) {
  make();
  EXPECT_EQ(of_fake<int>("fake_mpi_comms"), 2);
  group_.reset();
  comms_.reset();
  EXPECT_EQ(of_fake<int>("fake_mpi_comms"), 0);
}

TEST_F(MpiGroupOnFake, a_thread_level_that_does_not_suffice_is_named) {
  of_fake<int>("fake_mpi_level") = 2;
  const auto made = MpiComms::make({.library = kFake, .comm = kWorldOfMpich, .ranks = {0}}, 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("with MPI_THREAD_SERIALIZED, and needs"),
            std::string::npos);
}

TEST_F(MpiGroupOnFake, handles_of_another_binary_interface_are_refused) {
  constexpr std::uintptr_t kWorldOfStandard = 0x101;
  const auto made = MpiComms::make({.library = kFake, .comm = kWorldOfStandard, .ranks = {0}}, 0);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("MPI4PY_MPIABI"), std::string::npos);
}

TEST(MpiLibrary, what_is_no_mpi_is_named) {
  const auto nothing = MpiLibrary::open("/no/such/libmpi.so");
  ASSERT_FALSE(nothing.ok());
  EXPECT_NE(nothing.status().message().find("/no/such/libmpi.so cannot be loaded"),
            std::string::npos);
  const auto other = MpiLibrary::open("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("it has no MPI_Initialized"), std::string::npos);
}

}  // namespace
}  // namespace lightcc
