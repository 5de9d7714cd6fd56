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
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
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

constexpr std::size_t kLarge = 40000;

/// A rank reduces kLarge elements twice. In the second step rank 0 calls `look` while all copies
/// from GPU 0 to the host are held. All ranks end together.
inline void hold_copies_of_a_step(World& world, int rank, const std::function<void()>& look) {
  const Framework framework(world.topology().local_rank);
  Numbers data = numbers_of(rank, kLarge);
  const Tensor tensor(framework, data);
  for (int step = 0; step < 2; ++step) {
    const bool looks = rank == 0 && step == 1;
    wait_for_all(world);
    if (looks) {
      fake::set("devices=4,hold=0:0");
    }
    wait_for_all(world);
    std::vector<Operation> operations;
    operations.push_back(
        compressed(tensor.put(operation_on(OpType::kAllreduce, "t", data)), CompressionSpec{}));
    const auto handle = world.start(std::move(operations), {});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    if (looks) {
      look();
      fake::set("devices=4");
    }
    ASSERT_TRUE(world.wait(*handle, {}).ok());
  }
  wait_for_all(world);
}

/// What all ranks together copy to and from GPU 0, when each reduces kLarge elements once.
inline fake::Copies copies_of_a_step(World& world, int rank) {
  const Framework framework(world.topology().local_rank);
  Numbers data = numbers_of(rank, kLarge);
  const Tensor tensor(framework, data);
  wait_for_all(world);
  if (rank == 0) {
    fake::set("devices=4");
  }
  wait_for_all(world);
  const auto reduced =
      run_one(world, compressed(tensor.put(operation_on(OpType::kAllreduce, "t", data)), {}));
  EXPECT_TRUE(reduced.ok()) << reduced.status().message();
  wait_for_all(world);
  const fake::Copies copies = fake::copies_of(0);
  wait_for_all(world);
  return copies;
}

/// Reduces a bucket with one tensor more than a table has rows.
inline void reduce_more_than_a_table(World& world, int rank) {
  const Framework framework(world.topology().local_rank);
  Numbers data = numbers_of(rank, 400);
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;
  tensors.reserve(kMaxTopkTensors + 1);
  for (std::size_t i = 0; i <= kMaxTopkTensors; ++i) {
    operations.push_back(
        compressed(tensors.emplace_back(framework, data)
                       .put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data)),
                   {}));
  }
  const auto ended = lightcc::testing::run_together(world, std::move(operations));
  ASSERT_TRUE(ended.ok()) << ended.status().message();
  EXPECT_EQ(tensors.front().read(), tensors.back().read());
  EXPECT_EQ(world.stats().topk.on_device, kMaxTopkTensors + 1);
  wait_for_all(world);
}

/// The last result of rank 0, when rank 1 joins after the first of three steps. NCCL carries
/// `buckets` of them.
inline Numbers reduced_while_rank_1_has_joined(const JobOptions& options, std::uint64_t buckets) {
  Numbers last;
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    for (int step = 0; step < 3 && (step == 0 || rank != 1); ++step) {
      const Numbers got = reduce(world, framework, numbers_of(rank, kCount), {.ratio = 0.02});
      if (rank == 0) {
        last = got;
      }
    }
    EXPECT_TRUE(run_one(world, lightcc::testing::bare(OpType::kJoin)).ok());
    // Nobody on the rank that has joined waits for the last ones.
    EXPECT_TRUE(comes_true([&] { return buckets_by_nccl(world) == buckets; }))
        << buckets_by_nccl(world);
  });
  return last;
}

/// What ranks have after three steps of twelve tensors on two lanes: every third one of the set of
/// ranks 0 and 2, every fourth one dense. Each calls `look(world)` at its end.
template <typename Look>
inline ByRank reduced_on_lanes_and_sets(JobOptions options, const Look& look) {
  options.environment["LIGHT_NUM_STREAMS"] = "2";
  options.process_sets = {{0, 2}};
  ByRank results(static_cast<std::size_t>(options.size));
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    std::vector<Numbers> data;
    std::vector<Tensor> tensors;
    tensors.reserve(12);
    for (int i = 0; i < 12; ++i) {
      data.push_back(numbers_of(rank + i, 2000));
      tensors.emplace_back(framework, data.back());
    }
    for (int step = 0; step < 3; ++step) {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const bool is_of_set = i % 3 == 2;
        if (is_of_set && rank != 0 && rank != 2) {
          continue;
        }
        Operation operation =
            tensors[i].put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]));
        operation.request.signature.process_set = is_of_set ? 1 : 0;
        if (i % 4 != 3) {
          operation = compressed(std::move(operation), {.ratio = i % 2 == 0 ? 0.02 : 0.05});
        }
        std::vector<Operation> one;
        one.push_back(std::move(operation));
        const auto handle = world.start(std::move(one), {});
        ASSERT_TRUE(handle.ok()) << handle.status().message();
        handles.push_back(*handle);
      }
      for (const Handle& handle : handles) {
        const auto ended = world.wait(handle, {});
        ASSERT_TRUE(ended.ok()) << ended.status().message();
      }
    }
    for (const Tensor& tensor : tensors) {
      of(results, rank).push_back(tensor.read());
    }
    look(world);
  });
  return results;
}

/// Trouble that rank 0 begins: `set` is fake::set or fake::set_nccl.
inline std::function<void(int rank)> on_rank_0(void (*set)(const std::string&),
                                               const std::string& settings) {
  return [=](int rank) {
    if (rank == 0) {
      set(settings);
    }
  };
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
