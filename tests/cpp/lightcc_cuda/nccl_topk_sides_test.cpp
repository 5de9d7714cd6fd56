// What ranks have of both sides of a step whose lists the fake NCCL carries, where a world fails:
// the bytes that host memory keeps back of the same steps.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "compression/topk_testing.hpp"
#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::nccl_topk_sides_test {
namespace {

using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;
using testing::wait_for_all;
using topk_jobs::kCount;

constexpr std::uint64_t kGoodSteps = 2;
constexpr std::uint64_t kMostSteps = 10;

/// `timeout`: of NCCL, in seconds.
JobOptions job(const std::vector<int>& hosts, const char* timeout) {
  JobOptions options = topk_jobs::options_on_levels(hosts);
  options.environment["LIGHT_NCCL_TOPK"] = "1";
  options.environment["LIGHT_NCCL_TIMEOUT"] = timeout;
  return options;
}

Status reduce(World& world, int rank, std::uint64_t step, const Framework* framework) {
  Numbers data = numbers_of(rank + static_cast<int>(step), kCount);
  Operation operation = operation_on(OpType::kAllreduce, "t", data);
  const CompressionSpec spec{.ratio = 0.02, .momentum = 0.9};
  if (framework == nullptr) {
    return run_one(world, topk_jobs::compressed(std::move(operation), spec)).status();
  }
  const Tensor tensor(*framework, data);
  return run_one(world, topk_jobs::compressed(tensor.put(std::move(operation)), spec)).status();
}

/// What each rank keeps back after so many steps, in host memory.
std::vector<std::vector<Bytes>> kept_back_on_hosts(const JobOptions& options) {
  std::vector<std::vector<Bytes>> kept(static_cast<std::size_t>(options.size));
  lightcc::testing::run_job(options, [&](World& world, int rank) {
    auto& own = kept[static_cast<std::size_t>(rank)];
    own.emplace_back();
    for (std::uint64_t step = 0; step < kMostSteps; ++step) {
      ASSERT_TRUE(reduce(world, rank, step, nullptr).ok());
      own.push_back(world.save_compression()->front().bytes);
    }
  });
  return kept;
}

/// What a rank tells when its world has failed.
struct Told {
  std::uint64_t finished = 0;
  TopkMoments moments;

  const Bytes* state_at(std::uint64_t steps) const {
    return lightcc::testing::state_at(moments, {.steps = steps, .counted = steps});
  }
};

/// Each rank marks each step that it has finished.
std::vector<Told> told_of(const JobOptions& options, const std::function<void()>& begin_trouble) {
  std::vector<Told> told(static_cast<std::size_t>(options.size));
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Told& own = told[static_cast<std::size_t>(rank)];
    while (own.finished < kMostSteps && reduce(world, rank, own.finished, &framework).ok()) {
      world.mark_compression();
      if (++own.finished != kGoodSteps) {
        continue;
      }
      wait_for_all(world);
      if (rank == 0) {
        begin_trouble();
      }
      wait_for_all(world);
    }
    EXPECT_LT(own.finished, kMostSteps);
    const auto all = world.save_compression_moments();
    ASSERT_EQ(all.size(), 1U);
    own.moments = all.front().moments;
  });
  return told;
}

void expect_states_of_hosts(const std::vector<Told>& told,
                            const std::vector<std::vector<Bytes>>& kept) {
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const std::uint64_t finished = told[rank].finished;
    EXPECT_EQ(told[rank].moments.marked, (TopkSteps{.steps = finished, .counted = finished}));
    EXPECT_NE(told[rank].state_at(finished), nullptr) << "rank " << rank;
    for (std::uint64_t steps = 1; steps < kept[rank].size(); ++steps) {
      if (const Bytes* const state = told[rank].state_at(steps); state != nullptr) {
        EXPECT_EQ(*state, kept[rank][steps]) << "rank " << rank << ", after " << steps;
      }
    }
  }
}

class NcclTopkSides : public ::testing::Test {};

TEST_F(NcclTopkSides, are_there_on_all_ranks_wherever_the_world_fails) {
  const JobOptions options = job({0, 1, 2}, "60");
  const auto kept = kept_back_on_hosts(options);
  const auto expect_of = [&](const std::vector<Told>& told) {
    expect_states_of_hosts(told, kept);
    std::uint64_t most = 0;
    for (const Told& of_rank : told) {
      most = std::max(most, of_rank.finished);
    }
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
      EXPECT_NE(told[rank].state_at(most), nullptr) << "rank " << rank << " of step " << most;
    }
  };
  for (const char* const settings :
       {"fail=ncclAllGather:3:1", "fail=ncclAllGather:3:5", "broken=5"}) {
    SCOPED_TRACE(settings);
    expect_of(told_of(options, [&] { fake::set_nccl(settings); }));
  }
  for (const char* const settings : {"cuMemcpyDtoHAsync_v2:2:3", "cuLaunchKernel:2:20"}) {
    SCOPED_TRACE(settings);
    expect_of(told_of(options, [&] { fake::set(std::string("devices=4,fail=") + settings); }));
  }
}

// The GPU ends the step then, with whatever lists are there, and is to undo it.
TEST_F(NcclTopkSides, are_there_of_a_step_that_is_aborted) {
  const JobOptions options = job({0, 1, 2}, "3");
  const auto told = told_of(options, [] { fake::set_nccl("hangs=1"); });
  expect_states_of_hosts(told, kept_back_on_hosts(options));
  for (const Told& of_rank : told) {
    EXPECT_EQ(of_rank.finished, kGoodSteps);
    EXPECT_NE(of_rank.state_at(kGoodSteps + 1), nullptr);
  }
}

// What was to be compressed may be broken.
TEST_F(NcclTopkSides, on_two_levels_a_step_that_is_aborted_has_its_earlier_one) {
  const JobOptions options = job({0, 0, 1, 1}, "3");
  const auto kept = kept_back_on_hosts(options);
  for (const char* const settings : {"hangs=1", "hangs=4"}) {
    SCOPED_TRACE(settings);
    const auto told = told_of(options, [&] { fake::set_nccl(settings); });
    expect_states_of_hosts(told, kept);
    for (const Told& of_rank : told) {
      // The fourth one may come after the lists, of which ranks are told then.
      EXPECT_TRUE(std::string(settings) == "hangs=4" ||
                  of_rank.state_at(of_rank.finished + 1) == nullptr);
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_topk_sides_test
