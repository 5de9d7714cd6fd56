// Jobs that all-reduce the fake GPU's tensors on two levels, whatever carries shards between hosts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::testing::levels_jobs {

using lightcc::testing::bare;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;

constexpr std::size_t kChunkBytes = 4096;

inline JobOptions on_levels(JobOptions options) {
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  options.environment["LIGHT_2D_CHUNK"] = std::to_string(kChunkBytes);
  return options;
}

/// Numbers whose sum depends on the order of its terms.
inline Numbers rough_numbers(int rank, std::size_t count) {
  Numbers numbers = lightcc::testing::numbers_of(rank, count);
  for (float& number : numbers) {
    number /= 3.0F;
  }
  return numbers;
}

inline int local_gpu(World& world) {
  return world.topology().local_rank;
}

/// How a bucket is reduced.
struct How {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  DataType dtype = DataType::kFloat32;
  bool in_place = true;
  bool is_apart = true;  ///< Tensors do not follow one another in memory.
  std::uint32_t process_set = 0;
};

inline void set_signature(Operation& operation, const How& how) {
  Signature& signature = operation.request.signature;
  signature.reduce_op = how.op;
  signature.prescale = how.prescale;
  signature.postscale = how.postscale;
  signature.process_set = how.process_set;
  operation.input.dtype = how.dtype;
  // Numbers are memory, for twice as many elements of 16 bits and half as many of 64.
  operation.input.shape.front() = operation.input.shape.front() *
                                  static_cast<std::int64_t>(sizeof(float)) /
                                  static_cast<std::int64_t>(element_size(how.dtype));
  if (how.in_place) {
    operation.output = operation.input;
  } else {
    operation.output.reset();
  }
}

/// All-reduces a bucket of `data`, on the host or the GPU; its results, tensor by tensor.
inline std::vector<Numbers> reduce(World& world,
                                   std::vector<Numbers> data,
                                   const How& how,
                                   const Framework* framework) {
  std::size_t total = 0;
  std::vector<std::size_t> starts;
  for (const Numbers& numbers : data) {
    starts.push_back(total);
    total += numbers.size() + (how.is_apart ? 64 : 0);
  }
  std::vector<Operation> operations;
  std::vector<Tensor> memory;  // Of all tensors.
  if (framework != nullptr) {
    Numbers all(total);
    for (std::size_t i = 0; i < data.size(); ++i) {
      std::ranges::copy(data[i], all.begin() + static_cast<std::ptrdiff_t>(starts[i]));
    }
    memory.emplace_back(*framework, all);
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    Operation operation = operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]);
    set_signature(operation, how);
    if (framework != nullptr) {
      operation = memory.front().put(std::move(operation));
      operation.input.data = static_cast<float*>(operation.input.data) + starts[i];
      if (how.in_place) {
        operation.output->data = operation.input.data;
      }
    }
    operations.push_back(std::move(operation));
  }
  const auto ended = lightcc::testing::run_together(world, std::move(operations));
  EXPECT_TRUE(ended.ok()) << ended.status().message();
  for (std::size_t i = 0; ended.ok() && i < data.size(); ++i) {
    OutputBuffer* const output = (*ended)[i].output.get();
    if (framework == nullptr && !how.in_place) {
      data[i] = numbers_in(*output, nullptr);
    } else if (framework != nullptr) {
      const auto* const in_place = static_cast<float*>(memory.front().data()) + starts[i];
      const auto address = how.in_place ? reinterpret_cast<Address>(in_place)
                                        : reinterpret_cast<Address>(output->data());
      data[i] = memory.front().read_at(address, data[i].size());
    }
  }
  return data;
}

inline std::vector<Numbers> bucket_of(int rank, const std::vector<std::size_t>& counts) {
  std::vector<Numbers> data;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    data.push_back(rough_numbers(rank + static_cast<int>(i), counts[i]));
  }
  return data;
}

/// Whole numbers of 16 bits each, in the memory of half as many float32.
inline Numbers short_floats(int rank, DataType dtype, std::size_t count) {
  std::vector<std::uint16_t> bits;
  for (const float number : lightcc::testing::numbers_of(rank, 2 * count)) {
    bits.push_back(dtype == DataType::kFloat16 ? float_to_half(number) : float_to_bfloat16(number));
  }
  Numbers numbers(count);
  std::memcpy(numbers.data(), bits.data(), bits.size() * sizeof(std::uint16_t));
  return numbers;
}

inline std::vector<std::uint32_t> bits_of(const std::vector<Numbers>& data) {
  std::vector<std::uint32_t> bits(data.front().size());
  std::memcpy(bits.data(), data.front().data(), bits.size() * sizeof(float));
  return bits;
}

/// What of `order` is in `other`, too.
inline std::vector<std::string> shared(const std::vector<std::string>& order,
                                       const std::vector<std::string>& other) {
  std::vector<std::string> both;
  std::ranges::copy_if(order, std::back_inserter(both), [&](const std::string& name) {
    return std::ranges::find(other, name) != other.end();
  });
  return both;
}

/// Reduces one bucket a tensor on six ranks, on two lanes and in four process sets. All ranks call
/// NCCL in the same order.
inline void reduce_on_lanes_and_sets(JobOptions options) {
  options.environment["LIGHT_NUM_STREAMS"] = "2";
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2, 3, 4, 5}, {0, 1, 3, 4}, {1, 2, 4, 5}, {0, 1, 2, 3}};
  options.process_sets = {sets.begin() + 1, sets.end()};
  std::vector<std::vector<std::string>> orders;
  Mutex mutex;
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    std::vector<Numbers> data(18, lightcc::testing::numbers_of(rank, 2500));
    std::vector<Tensor> tensors;
    tensors.reserve(data.size());
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < data.size(); ++i) {
      tensors.emplace_back(framework, data[i]);
      const std::size_t set = i % sets.size();
      if (std::ranges::find(sets[set], rank) == sets[set].end()) {
        continue;
      }
      Operation operation =
          tensors.back().put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      operation.request.signature.process_set = static_cast<std::uint32_t>(set);
      operation.request.signature.fusion = {FusionRule::kNone, 0};
      auto handle = world.start(lightcc::testing::only(std::move(operation)), {});
      ASSERT_TRUE(handle.ok()) << handle.status().message();
      handles.push_back(*handle);
    }
    for (const Handle& handle : handles) {
      const auto ended = world.wait(handle, {});
      ASSERT_TRUE(ended.ok()) << ended.status().message();
    }
    for (std::size_t i = 0; i < data.size(); ++i) {
      const std::vector<int>& set = sets[i % sets.size()];
      Numbers expected = data[i];
      if (std::ranges::find(set, rank) != set.end()) {
        expected.assign(expected.size(), 0.0F);
        for (const int member : set) {
          const Numbers theirs = lightcc::testing::numbers_of(member, 2500);
          std::ranges::transform(expected, theirs, expected.begin(), std::plus<>());
        }
      }
      EXPECT_EQ(tensors[i].read(), expected) << i;
    }
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    const MutexLock lock(mutex);
    orders = fake::orders_of_nccl();
  });
  ASSERT_EQ(orders.size(), 6U);
  for (const auto& one : orders) {
    for (const auto& other : orders) {
      EXPECT_EQ(shared(one, other), shared(other, one));
    }
  }
}

}  // namespace lightcc::cuda::testing::levels_jobs
