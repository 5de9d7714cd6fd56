// All-reduces of the fake GPU's tensors on two levels: the fake NCCL within hosts, the engine's own
// groups between them, with shards staged.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
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

using fake::operations_of_nccl;
using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::only;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using lightcc::testing::run_together;
using testing::errors_of_nccl_job;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;

constexpr std::size_t kChunkBytes = 4096;

JobOptions on_levels(JobOptions options) {
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  options.adjust = [more = options.adjust](Knobs& knobs) {
    knobs.two_level_chunk_bytes = kChunkBytes;
    if (more) {
      more(knobs);
    }
  };
  return options;
}

/// Numbers whose sum depends on the order of its terms.
Numbers rough_numbers(int rank, std::size_t count) {
  Numbers numbers = numbers_of(rank, count);
  for (float& number : numbers) {
    number /= 3.0F;
  }
  return numbers;
}

int local_gpu(World& world) {
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

void set_signature(Operation& operation, const How& how) {
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
std::vector<Numbers> reduce(World& world,
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
  std::vector<Tensor> memory;  // All tensors lie in it.
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
  const auto ended = run_together(world, std::move(operations));
  EXPECT_TRUE(ended.ok()) << ended.status().message();
  for (std::size_t i = 0; ended.ok() && i < data.size(); ++i) {
    OutputBuffer* const output = (*ended)[i].output.get();
    if (framework == nullptr && !how.in_place) {
      data[i] = testing::numbers_in(*output, nullptr);
    } else if (framework != nullptr) {
      const auto* const in_place = static_cast<float*>(memory.front().data()) + starts[i];
      const auto address = how.in_place ? reinterpret_cast<Address>(in_place)
                                        : reinterpret_cast<Address>(output->data());
      data[i] = memory.front().read_at(address, data[i].size());
    }
  }
  return data;
}

std::vector<Numbers> bucket_of(int rank, const std::vector<std::size_t>& counts) {
  std::vector<Numbers> data;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    data.push_back(rough_numbers(rank + static_cast<int>(i), counts[i]));
  }
  return data;
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

std::vector<std::uint32_t> bits_of(const std::vector<Numbers>& data) {
  std::vector<std::uint32_t> bits(data.front().size());
  std::memcpy(bits.data(), data.front().data(), bits.size() * sizeof(float));
  return bits;
}

class NcclGrid : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

TEST_F(NcclGrid, gives_the_bits_of_the_hosts_two_levels_for_all_sizes) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {0}, {1}, {3}, {1001}, {4096}, {10007}, {1, 0, 5, 3003, 2, 0, 17, 1}, {700, 600, 500}};
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    for (const auto& counts : shapes) {
      for (const bool in_place : {true, false}) {
        const How how{.in_place = in_place};
        const auto expected = reduce(world, bucket_of(rank, counts), how, nullptr);
        EXPECT_EQ(reduce(world, bucket_of(rank, counts), how, &framework), expected)
            << counts.front();
      }
    }
    EXPECT_GT(operations_of_nccl(), 0);
  });
}

TEST_F(NcclGrid, takes_blocks_of_three_and_blocks_of_one_host) {
  JobOptions uneven = on_levels(on_hosts({0, 0, 0, 1, 1, 1}));
  JobOptions one_host = lightcc::testing::in_blocks(2, on_levels(on_one_host(4)));
  for (const JobOptions& options : {uneven, one_host}) {
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      const auto expected = reduce(world, bucket_of(rank, {1000, 2047}), {}, nullptr);
      const auto got = reduce(world, bucket_of(rank, {1000, 2047}), {}, &framework);
      EXPECT_EQ(got, expected);
    });
  }
}

TEST_F(NcclGrid, combines_every_operator_with_its_factors) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const bool is_scaled = op == ReduceOp::kSum || op == ReduceOp::kAverage;
      const How how{
          .op = op, .prescale = is_scaled ? 0.7 : 1.0, .postscale = is_scaled ? 1.3 : 1.0};
      const auto expected = reduce(world, bucket_of(rank, {2001, 7}), how, nullptr);
      EXPECT_EQ(reduce(world, bucket_of(rank, {2001, 7}), how, &framework), expected)
          << reduce_op_name(op);
    }
  });
}

TEST_F(NcclGrid, combines_float16_and_bfloat16) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    for (const DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
        const How how{.op = op, .dtype = dtype};
        const Numbers numbers = short_floats(rank, dtype, 1501);
        EXPECT_EQ(bits_of(reduce(world, {numbers}, how, &framework)),
                  bits_of(reduce(world, {numbers}, how, nullptr)))
            << data_type_name(dtype) << " " << reduce_op_name(op);
      }
    }
  });
}

// Ranks would call NCCL with other counts if they joined neighbours.
TEST_F(NcclGrid, cuts_alike_where_tensors_are_neighbours_on_one_rank_alone) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    const How how{.is_apart = rank != 1};
    const auto expected = reduce(world, bucket_of(rank, {300, 200, 100}), how, nullptr);
    EXPECT_EQ(reduce(world, bucket_of(rank, {300, 200, 100}), how, &framework), expected);
  });
}

TEST_F(NcclGrid, copies_shards_alone) {
  constexpr std::size_t kCount = 40000;
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    Numbers data = rough_numbers(rank, kCount);
    const Tensor tensor(framework, data);
    ASSERT_TRUE(run_one(world, tensor.put(operation_on(OpType::kAllreduce, "t", data))).ok());
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    // Two hosts use each GPU of the fake driver.
    EXPECT_EQ(fake::copies_of(0).bytes_to_host + fake::copies_of(1).bytes_to_host,
              4 * kCount * sizeof(float) / 2);
    EXPECT_EQ(world.stats().device_buckets.by_own_plane, 1U);
    EXPECT_EQ(world.stats().device_buckets.on_levels, 1U);
    EXPECT_EQ(world.stats().device_buckets.staged, 0U);
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  });
}

TEST_F(NcclGrid, runs_flat_where_hosts_differ_or_nobody_asks) {
  JobOptions differing = on_levels(on_hosts({0, 0, 1}));
  JobOptions unasked = on_hosts({0, 0, 1, 1});
  JobOptions larger = on_levels(on_hosts({0, 0, 1, 1}));
  larger.environment["LIGHT_HIERARCHICAL_THRESHOLD"] = "4000";
  for (const JobOptions& options : {differing, unasked, larger}) {
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      Numbers data = numbers_of(rank, 5000);
      const Tensor tensor(framework, data);
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      ASSERT_TRUE(run_one(world, std::move(operation)).ok());
      ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
      EXPECT_EQ(fake::copies_of(0).to_host, 0);
      ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
      Numbers expected(data.size(), 0.0F);
      for (int member = 0; member < world.topology().size; ++member) {
        const Numbers theirs = numbers_of(member, 5000);
        std::ranges::transform(expected, theirs, expected.begin(), std::plus<>());
      }
      EXPECT_EQ(tensor.read(), expected);
    });
  }
}

TEST_F(NcclGrid, everything_else_runs_flat_beside_it) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [](World& world, int rank) {
    const Framework framework(local_gpu(world));
    const Tensor tensor(framework, numbers_of(rank));
    lightcc::testing::for_every_operation(rank, [&](const std::string& name, Operation operation) {
      operation.output.reset();
      if (operation.request.signature.op == OpType::kAlltoall) {
        operation.request.splits = {250, 250, 250, 250};
      }
      auto on_host = run_one(world, operation);
      auto on_gpu = run_one(world, tensor.put(operation));
      ASSERT_TRUE(on_host.ok()) << on_host.status().message();
      ASSERT_TRUE(on_gpu.ok()) << name << ": " << on_gpu.status().message();
      EXPECT_EQ(testing::numbers_in(*on_gpu->front().output, &tensor),
                testing::numbers_in(*on_host->front().output, nullptr))
          << name;
    });
  });
}

// int16 is not NCCL's, and goes by way of the host.
TEST_F(NcclGrid, costs_are_fitted_for_each_carrier_and_way) {
  const auto body = [](World& world, int rank) {
    const Framework framework(local_gpu(world));
    Numbers data = numbers_of(rank, 40000);
    EXPECT_TRUE(run_one(world, operation_on(OpType::kAllreduce, "host", data)).ok());
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat32, DataType::kInt16}) {
      const Tensor tensor(framework, data);
      Operation operation = tensor.put(
          operation_on(OpType::kAllreduce, std::string("gpu ") + data_type_name(dtype), data));
      operation.input.dtype = operation.output->dtype = operation.request.signature.dtype = dtype;
      operation.request.signature.reduce_op = ReduceOp::kSum;
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
  };
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), body);
}

TEST_F(NcclGrid, a_rank_that_has_joined_contributes_zeros) {
  run_nccl_job(on_levels(on_hosts({0, 0, 1, 1})), [](World& world, int rank) {
    const Framework framework(local_gpu(world));
    Numbers data = numbers_of(rank, 3000);
    const Tensor tensor(framework, data);
    if (rank != 1) {
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      const auto reduced = run_one(world, std::move(operation));
      ASSERT_TRUE(reduced.ok()) << reduced.status().message();
      const Numbers got = tensor.read();
      for (std::size_t i = 0; i < got.size(); ++i) {
        float expected = 0.0F;
        for (const int member : {0, 2, 3}) {
          expected += numbers_of(member, 3000)[i];
        }
        ASSERT_EQ(got[i], expected) << i;
      }
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
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
TEST_F(NcclGrid, ranks_call_nccl_in_one_order_over_lanes_and_sets) {
  JobOptions options = on_levels(on_hosts({0, 0, 0, 1, 1, 1}));
  options.environment["LIGHT_NUM_STREAMS"] = "2";
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2, 3, 4, 5}, {0, 1, 3, 4}, {1, 2, 4, 5}, {0, 1, 2, 3}};
  options.process_sets = {sets.begin() + 1, sets.end()};
  std::vector<std::vector<std::string>> orders;
  Mutex mutex;
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    std::vector<Numbers> data(18, numbers_of(rank, 2500));
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
      auto handle = world.start(only(std::move(operation)), {});
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
          const Numbers theirs = numbers_of(member, 2500);
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

// ---- Failures.

/// Reduces on two levels until an error comes; what each rank was told.
std::vector<Status> errors_of(JobOptions options, const std::function<void()>& begin_trouble) {
  return errors_of_nccl_job(on_levels(std::move(options)), 5000, begin_trouble);
}

TEST_F(NcclGrid, a_failure_of_nccl_within_one_host_ends_the_world_on_all_ranks) {
  for (const char* const fault : {"fail=ncclReduceScatter:3:2", "fail=ncclAllGather:3:7"}) {
    for (const Status& status : errors_of(on_hosts({0, 0, 1, 1}), [&] { fake::set_nccl(fault); })) {
      EXPECT_NE(status.message().find("error of the fake NCCL (NCCL error 3)"), std::string::npos)
          << status.message();
      EXPECT_GE(status.rank(), 0) << status.message();
    }
  }
}

TEST_F(NcclGrid, a_shard_that_cannot_be_copied_ends_the_world_on_all_ranks) {
  for (const char* const call : {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"}) {
    const std::string fault = std::string("devices=4,fail=") + call + "_v2:2:3";
    for (const Status& status : errors_of(on_hosts({0, 0, 1, 1}), [&] { fake::set(fault); })) {
      EXPECT_NE(status.message().find(call), std::string::npos) << status.message();
      EXPECT_GE(status.rank(), 0) << status.message();
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_grid_test
