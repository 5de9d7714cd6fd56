// How communicators end while others of the same GPU wait for peers that do not come.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"
#include "lightcc_cuda/nccl_members.hpp"

namespace lightcc::cuda::nccl_abort_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

/// Communicators of this version are connected when they are made: operations begin without peers.
constexpr const char* kConnected = "version=22105";

/// Begins a barrier of two ranks, to which rank 1 does not come.
std::unique_ptr<Work> wait_in_vain(NcclComms& comms, const std::shared_ptr<NcclComm>& comm) {
  const auto group = make_nccl_group(comms, comm, 0, 2);
  const int before = fake::operations_of_nccl();
  std::unique_ptr<Work> work = group->barrier();
  while (fake::operations_of_nccl() == before) {
    nap();
  }
  return work;
}

TEST(NcclAbort, an_abort_waits_for_no_communicator_that_is_yet_to_be_aborted) {
  const auto body = [](NcclComms& comms, const Comms& all, int rank) {
    std::vector<std::unique_ptr<Work>> works;
    for (const auto& comm : all) {
      works.push_back(rank == 0 ? wait_in_vain(comms, comm) : nullptr);
    }
    works.clear();  // Before their end.
    if (rank == 0) {
      EXPECT_EQ(finish(*make_nccl_group(comms, all[0], 0, 2)->barrier()).code(),
                ErrorCode::kShutDown);
    }
  };
  run_members({.nccl = kConnected, .comms = 3}, body);
}

TEST(NcclAbort, an_operation_times_out_while_another_communicator_is_being_destroyed) {
  const auto body = [](NcclComms& comms, const Comms& all, int rank) {
    const std::unique_ptr<Work> work = rank == 0 ? wait_in_vain(comms, all[0]) : nullptr;
    comms.free(all[1]);
    if (rank == 0) {
      const Status ended = finish(*work);
      EXPECT_EQ(ended.code(), ErrorCode::kTimeout) << ended.message();
    }
  };
  run_members({.nccl = kConnected, .comms = 2, .patience = std::chrono::milliseconds(500)}, body);
}

TEST(NcclAbort, a_communicator_that_goes_when_its_launch_has_failed_is_not_asked_for_errors) {
  const auto body = [](NcclComms& comms, const Comms& all, int) {
    fake::set_nccl("asked=50");
    const auto work = comms.start(all.front(), "call", [](const NcclCalls&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // Until it is asked.
      return Status(ErrorCode::kInternal, "failed");
    });
    comms.free(all.front());
    EXPECT_EQ(finish(*work).message(), "failed");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  run_members({.members = 1}, body);
}

TEST(NcclAbort, a_launch_that_goes_on_calls_no_communicator_that_was_aborted_meanwhile) {
  const auto body = [](NcclComms& comms, const Comms& all, int) {
    std::atomic<bool> is_launched = false;
    const auto work = comms.start(all.front(), "call", [&](const NcclCalls& calls) {
      is_launched = true;
      while (fake::live_nccl() > 0) {
        nap();
      }
      return calls.check(calls.nccl().send(nullptr, 0, kNcclUint8, 0, calls.comm(), nullptr), "");
    });
    while (!is_launched) {
      nap();
    }
    comms.abort();
    EXPECT_NE(finish(*work).code(), ErrorCode::kOk);
  };
  run_members({.members = 1}, body);
}

TEST(NcclAbort, a_communicator_that_cannot_be_freed_in_order_is_aborted_and_said_once) {
  ::testing::internal::CaptureStderr();
  const auto body = [](NcclComms& comms, const Comms& all, int) {
    const int before = fake::aborts_of_nccl();
    fake::set_nccl("fail=ncclCommFinalize:3:0");
    comms.free(all[0]);
    comms.free(all[1]);
    while (fake::aborts_of_nccl() < before + 2) {
      nap();
    }
    fake::set_nccl("");
    EXPECT_TRUE(await(*comms.split(0)).ok());
  };
  run_members({.members = 1, .comms = 2}, body);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string warning = "rank 0 could not free a communicator of NCCL: ncclCommFinalize: ";
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
}

TEST(NcclAbort, nobody_waits_behind_a_communicator_that_is_freed_without_end) {
  const auto body = [](NcclComms& comms, const Comms& all, int) {
    const auto work = make_nccl_group(comms, all[0], 0, 1)->barrier();
    while (work->device_end() == nullptr) {
      nap();
    }
    comms.free(all[1]);
    EXPECT_EQ(await(*comms.split(0)).message(),
              "rank 0 waited for NCCL's ncclCommFinalize, to which not all ranks came in time");
  };
  run_members(
      {.members = 1, .nccl = "hangs=1", .comms = 2, .patience = std::chrono::milliseconds(200)},
      body);
}

TEST(NcclAbort, a_start_to_which_not_all_ranks_come_is_a_timeout_and_is_left_behind) {
  fake::set("devices=2,unified=1");
  fake::set_nccl("");
  const auto library = NcclLibrary::open("");
  ASSERT_TRUE(library.ok());
  NcclUniqueId id;
  ASSERT_EQ(library->call().unique_id(&id), kNcclSuccess);
  auto comms = NcclComms::make(
      {.library = *library, .id = id, .size = 2, .start_patience = std::chrono::milliseconds(200)});
  ASSERT_TRUE(comms.ok());
  EXPECT_EQ(await(*(*comms)->split(0)).message(),
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
Status end_of_launch(const std::string& nccl) {
  Status ended;
  run_members({.nccl = nccl, .patience = std::chrono::milliseconds(500)},
              [&](NcclComms& comms, const Comms& all, int rank) {
                if (rank == 0) {
                  ended = finish(*wait_in_vain(comms, all[0]));
                }
              });
  return ended;
}

// From 2.22 on the first operation connects to peers, which may be dead.
TEST(NcclAbort, an_operation_that_nccl_does_not_begin_is_a_timeout) {
  const Status ended = end_of_launch("version=22809");
  EXPECT_EQ(ended.code(), ErrorCode::kTimeout);
  EXPECT_EQ(ended.message(),
            "rank 0 waited for NCCL's ncclAllReduce to begin, to which not all ranks came in time");
}

TEST(NcclAbort, an_error_of_an_operation_that_nccl_does_not_begin_is_seen) {
  const Status ended = end_of_launch("connects=1,broken=1");
  EXPECT_EQ(ended.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(ended.message().find("remote process exited"), std::string::npos) << ended.message();
}

}  // namespace
}  // namespace lightcc::cuda::nccl_abort_test
