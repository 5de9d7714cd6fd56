// Ranks as threads, each with communicators of NCCL and a fake GPU of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/clock.hpp"
#include "lightcc/collectives/work.hpp"

#include "doubles/threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/nccl/comms.hpp"

namespace lightcc::cuda::testing {

inline void nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

inline Status finish(Work& work) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work.advance());
    if (progress == Progress::kDone) {
      return {};
    }
    nap();
  }
}

/// Waits until a communicator is made; what that has come to.
inline Status await(const NcclComm& comm) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool made, comm.is_made());
    if (made) {
      return {};
    }
    nap();
  }
}

struct MembersOptions {
  int members = 2;
  std::string nccl = {};  ///< What the fake NCCL has.
  int comms = 1;          ///< Communicators of each.
  Duration patience = std::chrono::seconds(30);
};

using Comms = std::vector<std::shared_ptr<NcclComm>>;

/// Runs them with memory that "GPUs" and the host read. Afterwards nothing of the driver's or
/// NCCL's is left.
inline void run_members(const MembersOptions& options,
                        const std::function<void(NcclComms&, const Comms&, int)>& body) {
  fake::set("devices=5,unified=1,delay_us=100");
  fake::set_nccl(options.nccl);
  const auto library = NcclLibrary::open("");
  ASSERT_TRUE(library.ok());
  NcclUniqueId id;
  ASSERT_EQ(library->call().unique_id(&id), kNcclSuccess);
  run_on_threads(options.members, [&](int rank) {
    auto comms = NcclComms::make({.library = *library,
                                  .id = id,
                                  .rank = rank,
                                  .size = options.members,
                                  .device = rank,
                                  .start_patience = std::chrono::seconds(30),
                                  .operation_patience = options.patience});
    ASSERT_TRUE(comms.ok());
    Comms all;
    for (int i = 0; i < options.comms; ++i) {
      const Status made = await(*all.emplace_back((*comms)->split(rank)));
      ASSERT_TRUE(made.ok()) << made.message();
    }
    body(**comms, all, rank);
  });
  fake::set("");
  fake::set_nccl("");
  EXPECT_EQ(fake::live(), 0);
  EXPECT_EQ(fake::live_nccl(), 0);
}

}  // namespace lightcc::cuda::testing
