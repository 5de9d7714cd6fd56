// Jobs of three hosts with one rank each, which reduce the fake GPU's tensors by top-k compression,
// whatever carries their lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"

namespace lightcc::cuda::testing::topk_jobs {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 4001;
/// A step of float32 makes so many in steady state.
constexpr int kLaunches = 17;

using ByRank = std::vector<std::vector<Numbers>>;

/// All tensors are large enough for compression.
inline lightcc::testing::JobOptions options() {
  lightcc::testing::JobOptions options = lightcc::testing::on_hosts({0, 1, 2});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  return options;
}

/// The same with two levels.
inline lightcc::testing::JobOptions options_on_levels(const std::vector<int>& hosts = {
                                                          0, 0, 1, 1}) {
  lightcc::testing::JobOptions options = lightcc::testing::on_hosts(hosts);
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
inline ByRank trained_on_hosts(const lightcc::testing::JobOptions& options, const Train& train) {
  ByRank results(static_cast<std::size_t>(options.size));
  lightcc::testing::run_job(
      options, [&](World& world, int rank) { of(results, rank) = train(world, rank); });
  return results;
}

inline ByRank trained_on_hosts(const lightcc::testing::JobOptions& options,
                               const CompressionSpec& spec) {
  return trained_on_hosts(
      options, [&](World& world, int rank) { return train(world, rank, nullptr, spec); });
}

inline Operation compressed(Operation operation, const CompressionSpec& spec) {
  operation.request.signature.reduce_op = ReduceOp::kSum;
  operation.request.signature.compression = spec;
  return operation;
}

/// Reduces a tensor of the GPU once. Returns the result.
inline Numbers reduce(World& world,
                      const Framework& framework,
                      const Numbers& numbers,
                      const CompressionSpec& spec) {
  Numbers data = numbers;
  const Tensor tensor(framework, data);
  Operation operation = tensor.put(lightcc::testing::operation_on(OpType::kAllreduce, "t", data));
  const auto reduced = lightcc::testing::run_one(world, compressed(std::move(operation), spec));
  EXPECT_TRUE(reduced.ok()) << reduced.status().message();
  return tensor.read();
}

/// Sizes of tensors that differ, each with some entries to be sent.
inline std::vector<std::size_t> sizes(std::size_t tensors) {
  std::vector<std::size_t> elements;
  for (std::size_t i = 0; i < tensors; ++i) {
    elements.push_back(400 + i * 37 % 400);
  }
  return elements;
}

/// With a process set of ranks 0 and 2.
inline lightcc::testing::JobOptions with_a_set(lightcc::testing::JobOptions options) {
  options.process_sets = {{0, 2}};
  options.environment["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1";
  return options;
}

/// Trains on the set, and removes it. Calls `look(world)` between the two on its ranks.
template <typename Look>
inline void expect_a_set_to_take_all_along(World& world, int rank, const Look& look) {
  const Framework framework;
  if (rank != 1) {
    train(world, rank / 2, &framework, {}, 1);
    look(world);
    EXPECT_EQ(world.save_compression()->size(), 2U);
  }
  wait_for_all(world);
  Operation removal = lightcc::testing::bare(OpType::kRemoveProcessSet);
  removal.request.signature.root_or_peer = 1;
  const auto removed = lightcc::testing::run_one(world, std::move(removal));
  EXPECT_TRUE(removed.ok()) << removed.status().message();
  EXPECT_EQ(world.save_compression()->size(), 0U);
}

/// Ways to compress that have something of their own on GPUs.
inline auto specs() {
  return ::testing::Values(CompressionSpec{.ratio = 0.01, .momentum = 0.5},
                           CompressionSpec{.ratio = 0.02, .warmup_steps = 2, .fp16 = true},
                           CompressionSpec{.ratio = 0.05, .exact = true});
}

}  // namespace lightcc::cuda::testing::topk_jobs
