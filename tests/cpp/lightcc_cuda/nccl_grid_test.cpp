// All-reduces of the fake GPU's tensors on two levels: the fake NCCL within hosts, the engine's own
// groups between them, with shards staged.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::nccl_grid_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using fake::operations_of_nccl;

int local_gpu(World& world) {
  return world.topology().local_rank;
}

/// Whole numbers of 16 bits each, in the memory of half as many float32.
Numbers short_floats(int rank, DataType dtype, std::size_t count) {
  std::vector<std::uint16_t> bits;
  for (const float number : numbers_of(rank, 2 * count)) {
    bits.push_back(dtype == DataType::kFloat16 ? float_to_half(number) : float_to_bfloat16(number));
  }
  Numbers numbers(count);
  std::memcpy(numbers.data(), bits.data(), bits.size() * sizeof(std::uint16_t));
  return numbers;
}

/// Numbers that are NaNs are not equal, and their bits are.
std::vector<std::uint32_t> bits_of(const std::vector<Numbers>& data) {
  std::vector<std::uint32_t> bits;
  for (const Numbers& numbers : data) {
    std::ranges::transform(numbers, std::back_inserter(bits), [](float number) {
      return std::bit_cast<std::uint32_t>(number);
    });
  }
  return bits;
}

TEST(NcclGrid, gives_the_bits_of_the_hosts_two_levels_for_all_sizes) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {0}, {1}, {3}, {1001}, {4096}, {10007}, {1, 0, 5, 3003, 2, 0, 17, 1}, {700, 600, 500}};
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    for (const auto& counts : shapes) {
      for (const bool in_place : {true, false}) {
        const How how{.in_place = in_place};
        const auto expected = reduce_bucket(world, bucket_of(rank, counts), how);
        EXPECT_EQ(reduce_bucket(world, bucket_of(rank, counts), how, {&framework}), expected)
            << counts.front();
      }
    }
    EXPECT_GT(operations_of_nccl(), 0);
  });
}

TEST(NcclGrid, takes_blocks_of_three_and_blocks_of_one_host) {
  JobOptions uneven = on_levels(on_hosts({0, 0, 0, 1, 1, 1}));
  JobOptions one_host = in_blocks(2, on_levels(on_one_host(4)));
  for (const JobOptions& options : {uneven, one_host}) {
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      const auto expected = reduce_bucket(world, bucket_of(rank, {1000, 2047}), {});
      const auto got = reduce_bucket(world, bucket_of(rank, {1000, 2047}), {}, {&framework});
      EXPECT_EQ(got, expected);
    });
  }
}

TEST(NcclGrid, combines_every_operator_with_its_factors_and_all_kinds_of_floats) {
  for (const JobOptions& options : {on_levels(on_hosts({0, 0, 1, 1})), on_one_host(2)}) {
    // NCCL multiplies before it adds, which is the same for powers of two.
    const std::array factors = options.hosts.empty() ? std::array{0.5, 0.25} : std::array{0.7, 1.3};
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      for (const DataType dtype : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
        const bool is_short = dtype != DataType::kFloat32;
        const std::vector<Numbers> data =
            is_short ? std::vector<Numbers>{short_floats(rank, dtype, 1501)}
                     : bucket_of(rank, {2001, 7});
        for (const ReduceOp op : {ReduceOp::kSum,
                                  ReduceOp::kAverage,
                                  ReduceOp::kMin,
                                  ReduceOp::kMax,
                                  ReduceOp::kProduct}) {
          const bool is_scaled = !is_short && (op == ReduceOp::kSum || op == ReduceOp::kAverage);
          const How how{.op = op,
                        .prescale = is_scaled ? factors.front() : 1.0,
                        .postscale = is_scaled ? factors.back() : 1.0,
                        .dtype = dtype};
          EXPECT_EQ(bits_of(reduce_bucket(world, data, how, {&framework})),
                    bits_of(reduce_bucket(world, data, how)))
              << data_type_name(dtype) << " " << reduce_op_name(op);
        }
      }
    });
  }
}

// Ranks would call NCCL with other counts if they joined neighbours.
TEST(NcclGrid, cuts_alike_where_tensors_are_neighbours_on_one_rank_alone) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    const std::vector<Numbers> data = bucket_of(rank, {300, 200, 100});
    std::vector<Numbers> expected = reduce_bucket(world, data);
    const auto joined = [](const std::vector<Numbers>& all) {
      Numbers numbers;
      for (const Numbers& one : all) {
        numbers.insert(numbers.end(), one.begin(), one.end());
      }
      return numbers;
    };
    const Tensor neighbours(framework, joined(data));
    const auto run = [&](World& where, std::vector<Operation> operations) {
      auto* next = static_cast<float*>(neighbours.data());
      for (Operation& operation : operations) {
        operation.input.data = std::exchange(next, next + operation.input.shape.front());
        operation.output = operation.input;
      }
      return run_together(where, std::move(operations));
    };
    if (rank == 1) {
      reduce_bucket(world, data, {}, {&framework}, run);
      EXPECT_EQ(neighbours.read(), joined(expected));
    } else {
      EXPECT_EQ(reduce_bucket(world, data, {}, {&framework}), expected);
    }
  });
}

TEST(NcclGrid, copies_shards_alone) {
  constexpr std::size_t kCount = 40000;
  const auto body = [](const RankOnGpu& on) {
    ASSERT_TRUE(run_one(on.world, on.tensor.in(OpType::kAllreduce, "t")).ok());
    wait_for_all(on.world);
    // Two hosts use each GPU of the fake driver.
    EXPECT_EQ(fake::copies_of(0).bytes_to_host + fake::copies_of(1).bytes_to_host,
              4 * kCount * sizeof(float) / 2);
    const DeviceBuckets counted = on.world.stats().device_buckets;
    EXPECT_EQ(counted.by_own_plane, 1U);
    EXPECT_EQ(counted.on_levels, 1U);
    EXPECT_EQ(counted.staged, 0U);
    wait_for_all(on.world);
  };
  run_nccl_job_on_tensors(on_levels(on_hosts({0, 0, 1, 1})), body, kCount);
}

TEST(NcclGrid, runs_flat_where_hosts_differ_or_nobody_asks) {
  JobOptions larger = on_levels(on_hosts({0, 0, 1, 1}));
  larger.environment["LIGHT_HIERARCHICAL_THRESHOLD"] = "4000";
  for (const JobOptions& options :
       {on_levels(on_hosts({0, 0, 1})), on_hosts({0, 0, 1, 1}), larger}) {
    const auto body = [](const RankOnGpu& on) {
      ASSERT_TRUE(run_one(on.world, on.tensor.in(OpType::kAllreduce, "t")).ok());
      wait_for_all(on.world);
      EXPECT_EQ(fake::copies_of(0).to_host, 0);
      wait_for_all(on.world);
    };
    run_nccl_job_on_tensors(options, body, 5000);
  }
}

// int16 is not NCCL's, and goes by way of the host.
TEST(NcclGrid, costs_are_fitted_for_each_carrier_and_way) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [](World& world, int rank) {
    const Framework framework(local_gpu(world));
    Numbers data = numbers_of(rank, 40000);
    const Tensor tensor(framework, data);
    EXPECT_TRUE(run_one(world, operation_on(OpType::kAllreduce, "host", data)).ok());
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat32, DataType::kInt16}) {
      Operation operation =
          tensor.in(OpType::kAllreduce, std::string("gpu ") + data_type_name(dtype));
      operation.input.dtype = operation.output->dtype = operation.request.signature.dtype = dtype;
      EXPECT_TRUE(run_one(world, std::move(operation)).ok());
    }
    std::map<Carrier, std::uint64_t> samples;
    for (const AllreduceCost& cost : world.stats().allreduce_costs) {
      EXPECT_TRUE(cost.two_level);
      EXPECT_GT(cost.seconds, 0);
      samples[cost.carrier] += cost.samples;
    }
    EXPECT_EQ(samples,
              (std::map<Carrier, std::uint64_t>{
                  {Carrier::kHost, 1}, {Carrier::kStaged, 1}, {Carrier::kNccl, 2}}));
  });
}

/// What of `order` is in `other`, too.
std::vector<std::string> shared(const std::vector<std::string>& order,
                                const std::vector<std::string>& other) {
  std::vector<std::string> both;
  std::ranges::copy_if(order, std::back_inserter(both), [&](const std::string& name) {
    return std::ranges::find(other, name) != other.end();
  });
  return both;
}

// With one bucket a tensor, on two lanes and four process sets, all of which have levels.
TEST(NcclGrid, ranks_call_nccl_in_one_order_over_lanes_and_sets) {
  JobOptions options = on_levels(on_hosts({0, 0, 0, 1, 1, 1}));
  options.environment["LIGHT_NUM_STREAMS"] = "2";
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2, 3, 4, 5}, {0, 1, 3, 4}, {1, 2, 4, 5}, {0, 1, 2, 3}};
  options.process_sets = {sets.begin() + 1, sets.end()};
  std::vector<std::vector<std::string>> orders;
  Mutex mutex;
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    std::vector<Tensor> tensors;
    tensors.reserve(18);
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < 18; ++i) {
      tensors.emplace_back(framework, numbers_of(rank, 2500));
      const std::size_t set = i % sets.size();
      if (std::ranges::find(sets[set], rank) != sets[set].end()) {
        Operation operation = tensors.back().in(OpType::kAllreduce, "t" + std::to_string(i));
        operation.request.signature.process_set = static_cast<std::uint32_t>(set);
        operation.request.signature.fusion = {FusionRule::kNone, 0};
        handles.push_back(value(world.start(only(std::move(operation)), {})));
      }
    }
    for (const Handle& handle : handles) {
      (void)value(world.wait(handle, {}));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<int>& set = sets[i % sets.size()];
      const bool is_member = std::ranges::find(set, rank) != set.end();
      EXPECT_EQ(tensors[i].read(), sums_of(is_member ? set : std::vector{rank}, 2500)) << i;
    }
    wait_for_all(world);
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

}  // namespace
}  // namespace lightcc::cuda::nccl_grid_test
