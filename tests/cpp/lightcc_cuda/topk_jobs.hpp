// Jobs of three hosts with one rank each, which reduce the fake GPU's tensors by top-k compression,
// whatever carries their lists.
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
    const auto ended = run_together(world, std::move(operations));
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
  std::vector<Tensor> on_gpu;
  on_gpu.reserve(elements.size());
  for (const std::size_t count : elements) {
    on_gpu.emplace_back(framework, numbers_of(rank, count));
  }
  int before = 0;
  for (int step = 0; step < 2; ++step) {
    std::vector<Operation> operations;
    for (const Tensor& tensor : on_gpu) {
      const std::string name = "t" + std::to_string(operations.size());
      operations.push_back(tensor.in(OpType::kAllreduce, name, ReduceOp::kAverage));
      operations.back().request.signature.compression = CompressionSpec{};
    }
    wait_for_all(world);
    before = fake::launches();
    wait_for_all(world);
    (void)value(run_together(world, std::move(operations)));
  }
  wait_for_all(world);
  const int launches = fake::launches() - before;
  wait_for_all(world);
  return launches;
}

namespace topk_jobs {

constexpr std::size_t kCount = 4001;

using ByRank = std::vector<std::vector<Numbers>>;

/// All tensors are large enough for compression.
inline JobOptions options() {
  JobOptions options = on_hosts({0, 1, 2});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  return options;
}

/// Two hosts of two ranks, and two levels.
inline JobOptions options_on_levels() {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  return options;
}

inline std::vector<Numbers>& of(ByRank& all, int rank) {
  return all.at(static_cast<std::size_t>(rank));
}

/// One step is skipped, and in every third one tensors are in host memory.
inline std::vector<Numbers> train(World& world,
                                  int rank,
                                  const Framework* framework,
                                  const CompressionSpec& spec,
                                  std::uint32_t process_set = 0) {
  return testing::train(
      world,
      rank,
      framework,
      spec,
      {.elements = {kCount, 300}, .infinite_rank = 1, .process_set = process_set});
}

/// The results of `train(world, rank)`, where all tensors are in host memory.
template <typename Train>
inline ByRank trained_on_hosts(const JobOptions& options, const Train& train) {
  ByRank results(static_cast<std::size_t>(options.size));
  run_job(options, [&](World& world, int rank) { of(results, rank) = train(world, rank); });
  return results;
}

/// Reduces a tensor of the GPU once. Returns the result.
inline Numbers reduce(World& world,
                      const Framework& framework,
                      const Numbers& numbers,
                      const CompressionSpec& spec) {
  const Tensor tensor(framework, numbers);
  Operation operation = tensor.in(OpType::kAllreduce, "t");
  operation.request.signature.compression = spec;
  (void)value(run_one(world, std::move(operation)));
  return tensor.read();
}

}  // namespace topk_jobs
}  // namespace lightcc::cuda::testing
