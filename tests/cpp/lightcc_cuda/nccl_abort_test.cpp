// How communicators end while others of the same GPU wait for peers that do not come.
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"

namespace lightcc::cuda::nccl_abort_test {
namespace {

using Comms = std::vector<std::shared_ptr<NcclComm>>;

/// Communicators of this version are connected when they are made: operations begin without peers.
constexpr const char* kConnected = "version=22105";

void nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

Status finish(Work& work) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work.advance());
    if (progress == Progress::kDone) {
      return {};
    }
    nap();
  }
}

/// Two ranks on a GPU each, with `count` communicators. Afterwards nothing is left.
class NcclAbortTest : public ::testing::Test {
 public:
  using Body = std::function<void(NcclComms&, const Comms&, int rank)>;

  static void run(int count, Duration patience, const Body& body) {
    fake::set("devices=2,unified=1");
    const auto library = NcclLibrary::open("");
    ASSERT_TRUE(library.ok());
    NcclUniqueId id;
    ASSERT_EQ(library->call().unique_id(&id), kNcclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        auto comms = NcclComms::make({.library = *library,
                                      .warn = [](const std::string& text) { FAIL() << text; },
                                      .id = id,
                                      .rank = rank,
                                      .size = 2,
                                      .device = rank,
                                      .start_patience = std::chrono::seconds(30),
                                      .operation_patience = patience});
        ASSERT_TRUE(comms.ok());
        Comms all;
        for (int i = 0; i < count; ++i) {
          all.push_back((*comms)->split(rank));
          await(*all.back());
        }
        body(**comms, all, rank);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    fake::set("");
    fake::set_nccl("");
    EXPECT_EQ(fake::live(), 0);
    EXPECT_EQ(fake::live_nccl(), 0);
  }

  static void await(const NcclComm& comm) {
    Result<bool> made = comm.is_made();
    while (made.ok() && !*made) {
      nap();
      made = comm.is_made();
    }
    ASSERT_TRUE(made.ok()) << made.status().message();
  }

  /// Begins a barrier to which rank 1 does not come.
  static std::unique_ptr<Work> wait_in_vain(NcclComms& comms,
                                            const std::shared_ptr<NcclComm>& comm) {
    const auto group = make_nccl_group(comms, comm, 0, 2);
    const int before = fake::operations_of_nccl();
    std::unique_ptr<Work> work = group->barrier();
    while (fake::operations_of_nccl() == before) {
      nap();
    }
    return work;
  }
};

TEST_F(NcclAbortTest, an_abort_waits_for_no_communicator_that_is_yet_to_be_aborted) {
  fake::set_nccl(kConnected);
  run(3, std::chrono::seconds(30), [](NcclComms& comms, const Comms& all, int rank) {
    if (rank == 1) {
      return;
    }
    std::vector<std::unique_ptr<Work>> works;
    for (const auto& comm : all) {
      works.push_back(wait_in_vain(comms, comm));
    }
    works.clear();  // They are dropped before their end.
  });
}

TEST_F(NcclAbortTest, an_operation_times_out_while_another_communicator_is_being_destroyed) {
  fake::set_nccl(kConnected);
  run(2, std::chrono::milliseconds(500), [](NcclComms& comms, const Comms& all, int rank) {
    std::unique_ptr<Work> work;
    if (rank == 0) {
      work = wait_in_vain(comms, all[0]);
    }
    comms.free(all[1]);
    if (rank == 0) {
      const Status ended = finish(*work);
      EXPECT_EQ(ended.code(), ErrorCode::kTimeout) << ended.message();
    }
  });
}

TEST_F(NcclAbortTest, a_start_to_which_not_all_ranks_come_is_a_timeout_and_is_left_behind) {
  fake::set("devices=2,unified=1");
  fake::set_nccl("");
  const auto library = NcclLibrary::open("");
  ASSERT_TRUE(library.ok());
  NcclUniqueId id;
  ASSERT_EQ(library->call().unique_id(&id), kNcclSuccess);
  auto comms = NcclComms::make({.library = *library,
                                .warn = [](const std::string& text) { FAIL() << text; },
                                .id = id,
                                .size = 2,
                                .start_patience = std::chrono::milliseconds(200)});
  ASSERT_TRUE(comms.ok());
  const std::shared_ptr<NcclComm> comm = (*comms)->split(0);
  Result<bool> made = comm->is_made();
  while (made.ok()) {
    nap();
    made = comm->is_made();
  }
  EXPECT_EQ(made.status().message(),
            "rank 0 waited for NCCL's ncclCommInitRankConfig, to which not all ranks came in time");
  (*comms).reset();
  EXPECT_GT(fake::live(), 0);
  // When a late rank comes, what was left behind ends.
  NcclHandle* late = nullptr;
  NcclConfig config;
  ASSERT_EQ(library->call().init(&late, 2, id, 1, &config), kNcclSuccess);
  ASSERT_EQ(library->call().abort(late), kNcclSuccess);
  while (fake::live() > 0 || fake::live_nccl() > 0) {
    nap();
  }
}

/// What rank 0 is told of an operation that NCCL does not begin.
Status end_of_launch(const std::string& settings) {
  Status ended;
  fake::set_nccl(settings);
  NcclAbortTest::run(
      1, std::chrono::milliseconds(500), [&](NcclComms& comms, const Comms& all, int rank) {
        if (rank == 0) {
          ended = finish(*NcclAbortTest::wait_in_vain(comms, all[0]));
        }
      });
  return ended;
}

// From 2.22 on the first operation connects to peers, which may be dead.
TEST_F(NcclAbortTest, an_operation_that_nccl_does_not_begin_is_a_timeout) {
  const Status ended = end_of_launch("version=22809");
  EXPECT_EQ(ended.code(), ErrorCode::kTimeout);
  EXPECT_EQ(ended.message(),
            "rank 0 waited for NCCL's ncclAllReduce to begin, to which not all ranks came in time");
}

TEST_F(NcclAbortTest, an_error_of_an_operation_that_nccl_does_not_begin_is_seen) {
  const Status ended = end_of_launch("connects=1,broken=1");
  EXPECT_EQ(ended.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(ended.message().find("remote process exited"), std::string::npos) << ended.message();
}

}  // namespace
}  // namespace lightcc::cuda::nccl_abort_test
