// Steps of a training whose gradients are compressed, on the host or on the fake GPU.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"

namespace lightcc::cuda::testing {

struct CompressedTraining {
  /// What tensors have. Elements of the first one differ from step to step.
  std::vector<std::size_t> elements;
  int infinite_rank = 0;  ///< Its input of step kSkippedStep has an infinity.
  std::uint32_t process_set = 0;

  static constexpr int kSteps = 6;
  static constexpr int kSkippedStep = 4;
};

/// Reduces all tensors in one bucket in each step; with a framework on its GPU, but for every third
/// step. Returns the results of all steps, in which NaNs become numbers that can be compared.
inline std::vector<Numbers> train(World& world,
                                  int rank,
                                  const Framework* framework,
                                  const CompressionSpec& spec,
                                  const CompressedTraining& training) {
  using lightcc::testing::numbers_of;
  using lightcc::testing::operation_on;
  std::vector<Numbers> results;
  for (int step = 0; step < CompressedTraining::kSteps; ++step) {
    std::vector<Numbers> data;
    for (const std::size_t count : training.elements) {
      data.push_back(numbers_of(data.empty() ? rank + step : rank, count));
    }
    if (step == CompressedTraining::kSkippedStep && rank == training.infinite_rank) {
      data.front().back() = std::numeric_limits<float>::infinity();
    }
    std::vector<Operation> operations;
    std::vector<Tensor> tensors;
    tensors.reserve(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) {
      Operation operation = operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]);
      operation.request.signature.compression = spec;
      operation.request.signature.process_set = training.process_set;
      if (framework != nullptr && step % 3 != 0) {
        operation = tensors.emplace_back(*framework, data[i]).put(std::move(operation));
      }
      operations.push_back(std::move(operation));
    }
    const auto ended = lightcc::testing::run_together(world, std::move(operations));
    EXPECT_TRUE(ended.ok()) << ended.status().message();
    for (std::size_t i = 0; i < data.size(); ++i) {
      Numbers& result = results.emplace_back(tensors.empty() ? data[i] : tensors[i].read());
      for (float& number : result) {
        number = std::isnan(number) ? -1e30F : number;
      }
    }
  }
  return results;
}

/// Launches of all ranks together, when each reduces a bucket of tensors of a GPU for the second
/// time.
inline int launches_of_bucket(World& world,
                              int rank,
                              const Framework& framework,
                              const std::vector<std::size_t>& elements) {
  using lightcc::testing::numbers_of;
  using lightcc::testing::operation_on;
  std::vector<Numbers> data;
  std::vector<Tensor> on_gpu;
  on_gpu.reserve(elements.size());
  for (const std::size_t count : elements) {
    data.push_back(numbers_of(rank, count));
    on_gpu.emplace_back(framework, data.back());
  }
  int before = 0;
  for (int step = 0; step < 2; ++step) {
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      operations.push_back(
          on_gpu[i].put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i])));
      operations.back().request.signature.compression = CompressionSpec{};
    }
    wait_for_all(world);
    before = fake::launches();
    wait_for_all(world);
    const auto ended = lightcc::testing::run_together(world, std::move(operations));
    EXPECT_TRUE(ended.ok()) << ended.status().message();
  }
  wait_for_all(world);
  const int launches = fake::launches() - before;
  wait_for_all(world);
  return launches;
}

}  // namespace lightcc::cuda::testing
