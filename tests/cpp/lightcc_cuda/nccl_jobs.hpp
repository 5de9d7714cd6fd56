// Jobs whose ranks have a GPU of the fake driver each, and the fake NCCL.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl/plane.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"

namespace lightcc::cuda::testing {

using lightcc::testing::JobOptions;

/// Runs ranks with a GPU each, and NCCL; afterwards nothing of the driver's or NCCL's is left.
inline void run_nccl_job(JobOptions options,
                         const std::function<void(World&, int)>& body,
                         const std::string& gpus = "devices=4,delay_us=200") {
  fake::set(gpus);
  // Planes are made before, and end after, what they stage with.
  std::vector<std::shared_ptr<Staging>> stagings;
  for (int rank = 0; rank < options.size; ++rank) {
    stagings.push_back(make_staging());
  }
  options.environment.emplace("HOROVOD_GPU_OPERATIONS", "NCCL");
  options.planes = [&](int rank) {
    return std::vector<PlaneMaker>{make_nccl_plane(stagings[static_cast<std::size_t>(rank)])};
  };
  options.staging = [&](int rank) { return stagings[static_cast<std::size_t>(rank)]; };
  lightcc::testing::run_job(options, body);
  stagings.clear();
  fake::set("");
  fake::set_nccl("");
  EXPECT_EQ(fake::live(), 0);
  EXPECT_EQ(fake::live_nccl(), 0);
}

/// Reduces tensors of `count` numbers until an error comes; what each rank was told. Rank 0 begins
/// the trouble when all ranks have come.
inline std::vector<Status> errors_of_nccl_job(JobOptions options,
                                              std::size_t count,
                                              const std::function<void()>& begin_trouble,
                                              ReduceOp op = ReduceOp::kSum) {
  Mutex mutex;
  std::vector<Status> told;
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    lightcc::testing::Numbers data = lightcc::testing::numbers_of(rank, count);
    const Tensor tensor(framework, data);
    const Operation barrier = lightcc::testing::bare(OpType::kBarrier);
    EXPECT_TRUE(lightcc::testing::run_one(world, barrier).ok());
    if (rank == 0) {
      begin_trouble();
    }
    EXPECT_TRUE(lightcc::testing::run_one(world, barrier).ok());
    Status failure;
    for (int step = 0; step < 20 && failure.ok(); ++step) {
      Operation reduces = tensor.put(lightcc::testing::operation_on(OpType::kAllreduce, "t", data));
      reduces.request.signature.reduce_op = op;
      failure = lightcc::testing::run_one(world, std::move(reduces)).status();
    }
    EXPECT_FALSE(failure.ok());
    const MutexLock lock(mutex);
    told.push_back(failure);
  });
  return told;
}

}  // namespace lightcc::cuda::testing
