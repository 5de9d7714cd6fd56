// Members of a NcclGroup as threads, each with communicators and a fake GPU of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"

namespace lightcc::cuda::testing {

inline Status finish(Work& work) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work.advance());
    if (progress == Progress::kDone) {
      return {};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

struct MembersOptions {
  int members = 2;
  std::string gpus = {};  ///< What the fake driver has, beside what all have.
  std::string nccl = {};  ///< What the fake NCCL has.
};

/// Runs them with memory that "GPUs" and the host read. Afterwards nothing of the driver's or
/// NCCL's is left.
inline void run_members(const MembersOptions& options,
                        const std::function<void(NcclComms&, Group&, int)>& body) {
  const int members = options.members;
  fake::set("devices=5,unified=1,delay_us=100," + options.gpus);
  fake::set_nccl(options.nccl);
  const auto library = NcclLibrary::open("");
  ASSERT_TRUE(library.ok());
  NcclUniqueId id;
  ASSERT_EQ(library->call().unique_id(&id), kNcclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      auto comms = NcclComms::make({.library = *library,
                                    .warn = [](const std::string& text) { FAIL() << text; },
                                    .id = id,
                                    .rank = rank,
                                    .size = members,
                                    .device = rank,
                                    .start_patience = std::chrono::seconds(30),
                                    .operation_patience = std::chrono::seconds(30)});
      ASSERT_TRUE(comms.ok());
      const std::shared_ptr<NcclComm> comm = (*comms)->split(rank);
      Result<bool> made = comm->is_made();
      while (made.ok() && !*made) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        made = comm->is_made();
      }
      ASSERT_TRUE(made.ok()) << made.status().message();
      const auto group = make_nccl_group(**comms, comm, rank, members);
      body(**comms, *group, rank);
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

}  // namespace lightcc::cuda::testing
