// Jobs whose ranks have a GPU of the fake driver each, and the fake NCCL.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl/plane.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"

namespace lightcc::cuda::testing {

/// Gives ranks NCCL's plane, and what it stages with: made before a plane, and gone after it.
inline JobOptions with_nccl(JobOptions options) {
  std::vector<std::shared_ptr<Staging>> stagings;
  for (int rank = 0; rank < options.size; ++rank) {
    stagings.push_back(make_staging());
  }
  options.environment.emplace("HOROVOD_GPU_OPERATIONS", "NCCL");
  options.planes = [stagings](int rank) {
    return std::vector<PlaneMaker>{make_nccl_plane(stagings[static_cast<std::size_t>(rank)])};
  };
  options.staging = [stagings](int rank) { return stagings[static_cast<std::size_t>(rank)]; };
  return options;
}

/// Runs ranks with a GPU each, and NCCL; afterwards nothing of the driver's or NCCL's is left.
inline void run_nccl_job(JobOptions options,
                         const std::function<void(World&, int)>& body,
                         const std::string& gpus = "devices=4,delay_us=200") {
  fake::set(gpus);
  run_job(with_nccl(std::move(options)), body);
  fake::set("");
  fake::set_nccl("");
  EXPECT_EQ(fake::live(), 0);
  EXPECT_EQ(fake::live_nccl(), 0);
}

/// A rank, its framework, and `numbers_of(rank)` on its GPU.
struct RankOnGpu {
  World& world;
  int rank;
  const Framework& framework;
  const Tensor& tensor;
};

/// The same of ranks that have a tensor of so many numbers.
inline void run_nccl_job_on_tensors(JobOptions options,
                                    const std::function<void(const RankOnGpu&)>& body,
                                    std::size_t count = 1000) {
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    const Tensor tensor(framework, numbers_of(rank, count));
    body({.world = world, .rank = rank, .framework = framework, .tensor = tensor});
  });
}

/// With two-level all-reduces, in chunks of so many bytes.
inline JobOptions on_levels(JobOptions options) {
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  options.adjust = [](Knobs& knobs) { knobs.two_level_chunk_bytes = 4096; };
  return options;
}

}  // namespace lightcc::cuda::testing
