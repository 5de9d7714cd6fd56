// How communicators end while others of the same GPU wait for peers that do not come.
#include <array>
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

/// Memory that a "GPU" and the host read: with `unified` the fake driver takes the host's.
struct Bytes {
  std::array<std::byte, 64> all{};
};

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

  /// Begins to receive what nobody sends.
  static std::unique_ptr<Work> wait_in_vain(NcclComms& comms,
                                            const std::shared_ptr<NcclComm>& comm,
                                            Bytes& memory) {
    const auto group = make_nccl_group(comms, comm, 0, 2);
    const int before = fake::operations_of_nccl();
    std::unique_ptr<Work> work = group->recv(memory.all.data(), memory.all.size(), 1);
    while (fake::operations_of_nccl() == before) {
      nap();
    }
    return work;
  }
};

TEST_F(NcclAbortTest, an_abort_waits_for_no_communicator_that_is_yet_to_be_aborted) {
  fake::set_nccl("");
  run(3, std::chrono::seconds(30), [](NcclComms& comms, const Comms& all, int rank) {
    if (rank == 1) {
      return;
    }
    std::array<Bytes, 3> memory;
    std::vector<std::unique_ptr<Work>> works;
    for (std::size_t i = 0; i < all.size(); ++i) {
      works.push_back(wait_in_vain(comms, all[i], memory.at(i)));
    }
    works.clear();  // They are dropped before their end.
  });
}

TEST_F(NcclAbortTest, an_operation_times_out_while_another_communicator_is_being_destroyed) {
  fake::set_nccl("");
  run(2, std::chrono::milliseconds(500), [](NcclComms& comms, const Comms& all, int rank) {
    Bytes memory;
    std::unique_ptr<Work> work;
    if (rank == 0) {
      work = wait_in_vain(comms, all[0], memory);
    }
    comms.free(all[1]);
    if (rank == 0) {
      const Status ended = finish(*work);
      EXPECT_EQ(ended.code(), ErrorCode::kTimeout) << ended.message();
    }
  });
}

/// What rank 0 is told of an operation of which NCCL says that it goes on.
Status end_of_launch(const std::string& settings) {
  Status ended;
  fake::set_nccl(settings);
  NcclAbortTest::run(
      1, std::chrono::milliseconds(500), [&](NcclComms& comms, const Comms& all, int rank) {
        if (rank == 0) {
          Bytes memory;
          ended = finish(*NcclAbortTest::wait_in_vain(comms, all[0], memory));
        }
      });
  return ended;
}

// From 2.22 on it connects to peers in the first operation, which may be dead.
TEST_F(NcclAbortTest, an_operation_that_nccl_does_not_begin_is_a_timeout) {
  const Status ended = end_of_launch("version=22203,connects=1");
  EXPECT_EQ(ended.code(), ErrorCode::kTimeout);
  EXPECT_EQ(ended.message(),
            "rank 0 waited for NCCL's ncclRecv to begin, for which not all ranks were there in "
            "time");
}

TEST_F(NcclAbortTest, an_error_of_an_operation_that_nccl_does_not_begin_is_seen) {
  const Status ended = end_of_launch("version=22203,connects=1,broken=1");
  EXPECT_EQ(ended.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(ended.message().find("remote process exited"), std::string::npos) << ended.message();
}

}  // namespace
}  // namespace lightcc::cuda::nccl_abort_test
