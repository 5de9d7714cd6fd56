// Jobs whose top-k lists the fake NCCL carries from GPU to GPU, on one level or two.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::testing::topk_jobs {

using lightcc::testing::numbers_of;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;

/// Of what NCCL carries.
inline std::uint64_t buckets_by_nccl(const World& world) {
  return world.stats().device_buckets.by_own_plane;
}

/// Steps of tensors of any type, on GPUs or by way of the host; the bytes of the results, and of
/// what is kept back in the end.
inline std::vector<std::vector<std::byte>> bytes_of_steps(World& world,
                                                          int rank,
                                                          DataType dtype,
                                                          int void_step) {
  constexpr std::size_t kElements = 3000;
  const Framework framework(world.topology().local_rank);
  const auto seed = static_cast<std::uint32_t>(rank);
  const CompressionSpec spec{.ratio = 0.02, .momentum = 0.9};
  std::vector<std::vector<std::byte>> results;
  const std::size_t bytes = kElements * element_size(dtype);
  for (int step = 0; step < 4; ++step) {
    Numbers words(bytes / sizeof(float));
    for (std::size_t i = 0; i < words.size(); ++i) {
      // Any bits, but for the highest one of each exponent.
      const auto draw = static_cast<std::uint32_t>(i * 2654435761U +
                                                   97U * (seed + static_cast<std::uint32_t>(step)));
      words[i] = std::bit_cast<float>(draw & 0xbfffbfffU);
    }
    if (step == void_step && rank == 1) {
      words.back() = std::bit_cast<float>(0xffffffffU);
    }
    const Tensor tensor(framework, words);
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", words));
    for (TensorRef* const ref : {&operation.input, &*operation.output}) {
      ref->dtype = dtype;
      ref->shape = {static_cast<std::int64_t>(kElements)};
    }
    operation.request.signature.dtype = dtype;
    operation.request.signature.shape = operation.input.shape;
    const auto reduced = run_one(world, topk_jobs::compressed(std::move(operation), spec));
    EXPECT_TRUE(reduced.ok()) << reduced.status().message();
    const Numbers got = tensor.read();
    const auto* const first = reinterpret_cast<const std::byte*>(got.data());
    results.emplace_back(first, first + bytes);
  }
  const auto saved = world.save_compression();
  EXPECT_TRUE(saved.ok());
  results.emplace_back(saved->front().bytes.begin(), saved->front().bytes.end());
  return results;
}

/// They are the same by both ways. `calls`: of NCCL, in a step of a rank by the host's way and by
/// NCCL's.
inline void expect_the_hosts_bytes(const JobOptions& options,
                                   const std::array<int, 2>& calls,
                                   DataType dtype,
                                   int void_step) {
  std::array<std::vector<std::vector<std::vector<std::byte>>>, 2> results;
  for (const std::size_t by_nccl : {0U, 1U}) {
    results[by_nccl].resize(static_cast<std::size_t>(options.size));
    JobOptions of_way = options;
    of_way.environment["LIGHT_NCCL_TOPK"] = std::to_string(by_nccl);
    run_nccl_job(of_way, [&](World& world, int rank) {
      results[by_nccl].at(static_cast<std::size_t>(rank)) =
          bytes_of_steps(world, rank, dtype, void_step);
      wait_for_all(world);
      EXPECT_EQ(fake::operations_of_nccl(), calls.at(by_nccl) * 4 * options.size);
      EXPECT_EQ(world.stats().topk.on_device, 4U);
    });
  }
  EXPECT_EQ(results[0], results[1]) << data_type_name(dtype) << ", void step " << void_step;
}

/// Waits until `claim` holds, but not for ever.
template <typename Claim>
inline bool comes_true(const Claim& claim) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!claim() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return claim();
}

/// What ranks are told when they reduce until an error comes. `steps` are good before.
inline std::vector<Status> errors_of_job(const JobOptions& options,
                                         const std::function<void(int rank)>& begin_trouble,
                                         int steps = 1) {
  Mutex mutex;
  std::vector<Status> told;
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Numbers data = numbers_of(rank, kCount);
    const Tensor tensor(framework, data);
    const auto step = [&] {
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      return run_one(world, topk_jobs::compressed(std::move(operation), {})).status();
    };
    for (int i = 0; i < steps; ++i) {
      EXPECT_TRUE(step().ok());
    }
    wait_for_all(world);
    begin_trouble(rank);
    wait_for_all(world);
    Status failure;
    for (int i = 0; i < 20 && failure.ok(); ++i) {
      failure = step();
    }
    EXPECT_FALSE(failure.ok());
    const MutexLock lock(mutex);
    told.push_back(failure);
  });
  return told;
}

inline bool has_words(const std::vector<Status>& told, const std::string& words) {
  return std::ranges::any_of(told, [&](const Status& status) {
    return status.message().find(words) != std::string::npos;
  });
}

}  // namespace lightcc::cuda::testing::topk_jobs
