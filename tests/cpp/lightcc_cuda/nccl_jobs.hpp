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

#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
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

}  // namespace lightcc::cuda::testing
