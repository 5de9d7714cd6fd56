// Reductions that NCCL does not have, of tensors of fake GPUs, beside the host's plane.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/rng.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::nccl_kernel_plane_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using lightcc::testing::run_together;
using testing::Framework;
using testing::run_nccl_job;
using testing::seed;
using testing::Tensor;

class NcclKernelPlane : public ::testing::Test {
 protected:
  // So nothing is NCCL's that has the host's bits by chance.
  void SetUp() override { fake::set_nccl("backwards=1"); }
};

struct Kind {
  OpType op = OpType::kAllreduce;
  DataType dtype = DataType::kInt16;
  ReduceOp reduce = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::uint32_t process_set = 0;
};

std::string text_of(const Kind& kind) {
  return std::string(op_type_name(kind.op)) + " " + data_type_name(kind.dtype) + " " +
         reduce_op_name(kind.reduce) + " " + std::to_string(kind.prescale);
}

/// Elements of any bits, in the memory of numbers.
Numbers elements_of(const Kind& kind, int rank, std::size_t count) {
  Numbers numbers((count * element_size(kind.dtype) + sizeof(float) - 1) / sizeof(float));
  Rng rng(seed() + static_cast<std::uint64_t>(rank) * 7919 + count);
  const auto bytes = std::as_writable_bytes(std::span(numbers));
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(rng.below(256)); });
  return numbers;
}

bool have_equal_bits(const Numbers& one, const Numbers& other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
}

void set_kind(Operation& operation, const Kind& kind, std::size_t count) {
  Signature& signature = operation.request.signature;
  signature.reduce_op = kind.reduce;
  signature.prescale = kind.prescale;
  signature.postscale = kind.postscale;
  signature.process_set = kind.process_set;
  operation.input.dtype = kind.dtype;
  operation.input.shape.front() = static_cast<std::int64_t>(count);
  operation.output.reset();
  if (kind.op == OpType::kAllreduce) {
    operation.output = operation.input;
  }
}

/// Reduces together on the host or the GPU; the results, in whole numbers of floats.
std::vector<Numbers> reduce(World& world,
                            int rank,
                            const Kind& kind,
                            const std::vector<std::size_t>& counts,
                            const Framework* framework) {
  std::vector<Numbers> data;
  for (const std::size_t count : counts) {
    data.push_back(elements_of(kind, rank, count));
  }
  std::vector<Tensor> tensors;
  tensors.reserve(data.size());
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < data.size(); ++i) {
    Operation operation = operation_on(kind.op, "t" + std::to_string(i), data[i]);
    set_kind(operation, kind, counts[i]);
    if (framework != nullptr) {
      tensors.emplace_back(*framework, data[i]);
      operation = tensors.back().put(std::move(operation));
    }
    operations.push_back(std::move(operation));
  }
  const auto ended = run_together(world, std::move(operations));
  EXPECT_TRUE(ended.ok()) << ended.status().message();
  for (std::size_t i = 0; ended.ok() && i < data.size(); ++i) {
    const Tensor* const tensor = framework == nullptr ? nullptr : &tensors[i];
    if (kind.op == OpType::kReducescatter) {
      data[i] = testing::numbers_in(*(*ended)[i].output, tensor);
    } else if (tensor != nullptr) {
      data[i] = tensor->read();
    }
  }
  return data;
}

/// Compares with the host's bits, and looks who has reduced.
void expect_the_hosts_bits(World& world,
                           int rank,
                           const Kind& kind,
                           const std::vector<std::size_t>& counts) {
  const Framework framework(world.topology().local_rank);
  const std::vector<Numbers> expected = reduce(world, rank, kind, counts, nullptr);
  const DeviceBuckets before = world.stats().device_buckets;
  const std::vector<Numbers> got = reduce(world, rank, kind, counts, &framework);
  const DeviceBuckets after = world.stats().device_buckets;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_TRUE(have_equal_bits(got[i], expected[i])) << text_of(kind) << ", tensor " << i;
  }
  EXPECT_GT(after.by_kernel, before.by_kernel) << text_of(kind);
  EXPECT_EQ(after.by_kernel - before.by_kernel, after.by_own_plane - before.by_own_plane);
  EXPECT_EQ(after.staged, before.staged);
}

/// All that ranks can ask for and NCCL lacks; with `all`, what it has of floats as well.
std::vector<Kind> kinds(bool all) {
  std::vector<Kind> found;
  for (std::uint8_t type = 0; type < kDataTypeCount; ++type) {
    const auto dtype = static_cast<DataType>(type);
    const bool is_float = is_floating_point(dtype);
    const bool is_missing =
        dtype == DataType::kInt16 || dtype == DataType::kUint16 || dtype == DataType::kBool;
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
      for (const bool is_scaled : {false, true}) {
        const bool is_for_nccl =
            is_float ? is_sum || !is_scaled : !is_missing && !is_scaled && op != ReduceOp::kAverage;
        if (!is_reducible(dtype, op) || (is_for_nccl && !(all && is_float))) {
          continue;
        }
        const Kind kind{.dtype = dtype,
                        .reduce = op,
                        .prescale = is_scaled ? 0.75 : 1.0,
                        .postscale = is_scaled ? -1.0 / 3 : 1.0};
        found.push_back(kind);
        if (is_sum) {
          found.push_back(kind);
          found.back().op = OpType::kReducescatter;
        }
      }
    }
  }
  return found;
}

void expect_the_hosts_bits_of(World& world, int rank, const std::vector<Kind>& kinds) {
  const std::vector<std::vector<std::size_t>> counts = {{37}, {1}, {0}, {640}, {5, 300, 1, 64, 2}};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& some = counts[i % counts.size()];
    // Reduce-scatters are not fused.
    expect_the_hosts_bits(world,
                          rank,
                          kinds[i],
                          kinds[i].op == OpType::kAllreduce ? some : std::vector{some.front() * 3});
  }
}

class NcclKernelPlaneOf : public NcclKernelPlane, public ::testing::WithParamInterface<int> {};

TEST_P(NcclKernelPlaneOf, what_nccl_lacks_has_the_hosts_bits) {
  run_nccl_job(
      on_one_host(GetParam()),
      [](World& world, int rank) { expect_the_hosts_bits_of(world, rank, kinds(false)); },
      "devices=5");
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclKernelPlaneOf, ::testing::Values(1, 2, 5));

TEST_F(NcclKernelPlane, large_buckets_go_in_pieces_and_shares) {
  JobOptions options = on_one_host(3);
  options.environment["LIGHT_GPU_CHUNK"] = "64K";
  options.environment["LIGHT_NUM_STREAMS"] = "2";
  run_nccl_job(options, [](World& world, int rank) {
    // A piece has 256 KiB, a share of it a third.
    expect_the_hosts_bits(world, rank, {}, {131072});
    expect_the_hosts_bits(world, rank, {}, {300001});
    expect_the_hosts_bits(world, rank, {.reduce = ReduceOp::kAverage}, {100000, 7, 80001, 3, 1});
    expect_the_hosts_bits(world, rank, {.op = OpType::kReducescatter}, {300002});
  });
}

TEST_F(NcclKernelPlane, process_sets_and_unequal_hosts_have_it) {
  JobOptions options = on_hosts({0, 0, 1});
  options.process_sets = {{0, 2}};
  run_nccl_job(options, [](World& world, int rank) {
    expect_the_hosts_bits(world, rank, {.dtype = DataType::kBool, .reduce = ReduceOp::kMin}, {500});
    if (rank != 1) {
      expect_the_hosts_bits(world, rank, {.process_set = 1}, {99, 3});
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  });
}

/// On two levels, with chunks of their pipeline that are smaller than a tensor.
void expect_the_hosts_bits_on_levels(const JobOptions& more, const std::vector<DataType>& dtypes) {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment = more.environment;
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  options.environment["LIGHT_2D_CHUNK"] = "4096";
  run_nccl_job(options, [&](World& world, int rank) {
    for (const DataType dtype : dtypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
        expect_the_hosts_bits(world, rank, {.dtype = dtype, .reduce = op}, {3000, 1, 700});
      }
    }
    EXPECT_GT(world.stats().device_buckets.on_levels, 0U);
  });
}

TEST_F(NcclKernelPlane, two_levels_have_the_hosts_bits) {
  expect_the_hosts_bits_on_levels({}, {DataType::kInt16, DataType::kUint16});
}

/// So a step between hosts is several of NCCL's, on a stream beside the one of the others.
JobOptions with_nccl_on_both() {
  fake::set_nccl("backwards=1,version=22703");
  JobOptions options;
  options.environment = {
      {"LIGHT_2D_INTER", "nccl"}, {"LIGHT_GPU_CHUNK", "256"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}};
  return options;
}

TEST_F(NcclKernelPlane, nccl_on_both_levels_has_the_hosts_bits) {
  expect_the_hosts_bits_on_levels(with_nccl_on_both(), {DataType::kInt16, DataType::kUint16});
}

TEST_F(NcclKernelPlane, a_rank_that_has_joined_contributes_zeros) {
  for (const std::size_t count : {std::size_t{50}, std::size_t{100001}}) {
    run_nccl_job(on_one_host(3), [count](World& world, int rank) {
      const Framework framework(rank);
      if (rank != 1) {
        const Kind kind;
        const std::vector<Numbers> got = reduce(world, rank, kind, {count, 5}, &framework);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::size_t elements = i == 0 ? count : 5;
          std::vector<std::int16_t> sums(got[i].size() * 2);
          std::memcpy(sums.data(), got[i].data(), sums.size() * 2);
          std::vector<std::int16_t> expected(sums.size());
          for (const int member : {0, 2}) {
            const Numbers theirs = elements_of(kind, member, elements);
            std::vector<std::int16_t> numbers(sums.size());
            std::memcpy(numbers.data(), theirs.data(), numbers.size() * 2);
            for (std::size_t k = 0; k < elements; ++k) {
              expected[k] = static_cast<std::int16_t>(expected[k] + numbers[k]);
            }
          }
          sums.resize(elements);
          expected.resize(elements);
          EXPECT_EQ(sums, expected) << i;
        }
      }
      EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
    });
  }
}

// ---- Drivers that do not load the kernels, and failures.

/// What carries a bucket of each type, where the bits of all but `unordered` are the host's.
DeviceBuckets carriers_without_kernels(const JobOptions& options,
                                       std::optional<DataType> unordered) {
  DeviceBuckets counted;
  const auto body = [&](World& world, int rank) {
    const Framework framework(rank);
    for (const DataType dtype : {DataType::kInt16, DataType::kFloat32}) {
      const Kind kind{.dtype = dtype};
      const std::vector<Numbers> expected = reduce(world, rank, kind, {333}, nullptr);
      const std::vector<Numbers> got = reduce(world, rank, kind, {333}, &framework);
      EXPECT_TRUE(dtype == unordered || have_equal_bits(got.front(), expected.front()));
    }
    if (rank == 0) {
      counted = world.stats().device_buckets;
    }
  };
  run_nccl_job(options, body, "devices=2,ptx=0");
  EXPECT_EQ(counted.by_kernel, 0U);
  return counted;
}

TEST_F(NcclKernelPlane, without_kernels_it_goes_by_way_of_the_host_with_the_same_bits) {
  const DeviceBuckets counted = carriers_without_kernels(on_one_host(2), DataType::kFloat32);
  EXPECT_EQ(counted.staged, 1U);
  EXPECT_EQ(counted.by_own_plane, 1U);
}

/// What each of three ranks is told, of a bucket of several tensors that goes in shares.
std::vector<Status> errors_of(const std::string& nccl, const std::string& gpus) {
  Mutex mutex;
  std::vector<Status> told;
  run_nccl_job(on_one_host(3), [&](World& world, int rank) {
    const Framework framework(rank);
    Numbers data(50000);
    const Tensor tensors[] = {{framework, data}, {framework, data}};
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 0) {
      fake::set_nccl(nccl);
      fake::set("devices=4," + gpus);
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    std::vector<Operation> operations;
    for (const Tensor& tensor : tensors) {
      Operation operation =
          operation_on(OpType::kAllreduce, "t" + std::to_string(operations.size()), data);
      set_kind(operation, {}, 2 * data.size());
      operations.push_back(tensor.put(std::move(operation)));
    }
    const Status status = run_together(world, std::move(operations)).status();
    const MutexLock lock(mutex);
    told.push_back(status);
  });
  EXPECT_EQ(told.size(), 3U);
  return told;
}

TEST_F(NcclKernelPlane, each_call_that_fails_ends_the_world_on_all_ranks) {
  const std::pair<const char*, const char*> of_nccl[] = {
      {"fail=ncclSend:3:2", "ncclSend: error of the fake NCCL (NCCL error 3)"},
      {"fail=ncclRecv:2:1", "ncclRecv: error of the fake NCCL (NCCL error 2)"},
      {"fail=ncclGroupEnd:3:2", "error of the fake NCCL (NCCL error 3)"},
      {"fail=ncclAllGather:1:1", "ncclAllGather: error of the fake NCCL (NCCL error 1)"}};
  for (const auto& [settings, text] : of_nccl) {
    for (const Status& status : errors_of(settings, "")) {
      EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
      EXPECT_GE(status.rank(), 0) << status.message();
    }
  }
  const std::pair<const char*, const char*> of_driver[] = {
      {"fail=cuLaunchKernel:1:2", "cuLaunchKernel"},
      {"fail=cuMemcpyDtoDAsync_v2:1:3", "cuMemcpyDtoDAsync"},
      {"fail=cuMemAlloc_v2:2:2", "cuMemAlloc"},
      {"fail=cuEventRecord:1:4", "cuEventRecord"}};
  for (const auto& [settings, text] : of_driver) {
    for (const Status& status : errors_of("", settings)) {
      EXPECT_FALSE(status.ok()) << settings;
      EXPECT_NE(status.message().find(text), std::string::npos)
          << settings << ": " << status.message();
      EXPECT_GE(status.rank(), 0) << status.message();
    }
  }
}

TEST_F(NcclKernelPlane, an_operation_that_breaks_ends_in_an_error) {
  for (const Status& status : errors_of("broken=2", "")) {
    EXPECT_NE(status.message().find("remote process exited"), std::string::npos)
        << status.message();
  }
}

// ---- Rank order.

JobOptions in_rank_order(JobOptions options) {
  options.environment["LIGHT_NCCL_RANK_ORDER"] = "1";
  return options;
}

TEST_F(NcclKernelPlane, floats_have_the_hosts_bits_in_rank_order_whatever_nccl_does) {
  JobOptions options = in_rank_order(on_one_host(3));
  options.environment["LIGHT_NCCL_BUFFER"] = "64K";  // For what NCCL reduces.
  run_nccl_job(options, [](World& world, int rank) {
    std::vector<Kind> floats = kinds(true);
    std::erase_if(floats, [](const Kind& kind) { return !is_floating_point(kind.dtype); });
    expect_the_hosts_bits_of(world, rank, floats);
    // What has one sum in any order stays NCCL's.
    const Framework framework(rank);
    const std::uint64_t before = world.stats().device_buckets.by_kernel;
    (void)reduce(world, rank, {.dtype = DataType::kInt32}, {40}, &framework);
    EXPECT_EQ(world.stats().device_buckets.by_kernel, before);
    EXPECT_EQ(world.stats().device_buckets.staged, 0U);
  });
}

TEST_F(NcclKernelPlane, without_it_nccl_chooses_the_order) {
  run_nccl_job(on_one_host(3), [](World& world, int rank) {
    const Framework framework(rank);
    const Kind kind{.dtype = DataType::kFloat32};
    const std::vector<Numbers> expected = reduce(world, rank, kind, {3000}, nullptr);
    EXPECT_FALSE(
        have_equal_bits(reduce(world, rank, kind, {3000}, &framework).front(), expected.front()));
    EXPECT_EQ(world.stats().device_buckets.by_kernel, 0U);
    EXPECT_EQ(world.stats().device_buckets.by_own_plane, 1U);
  });
}

TEST_F(NcclKernelPlane, two_levels_have_the_hosts_bits_in_rank_order) {
  expect_the_hosts_bits_on_levels(in_rank_order({}), {DataType::kFloat16, DataType::kFloat32});
}

TEST_F(NcclKernelPlane, nccl_on_both_levels_has_the_hosts_bits_in_rank_order) {
  expect_the_hosts_bits_on_levels(in_rank_order(with_nccl_on_both()),
                                  {DataType::kFloat16, DataType::kFloat32});
}

TEST_F(NcclKernelPlane, without_kernels_floats_in_rank_order_go_by_way_of_the_host) {
  const DeviceBuckets counted =
      carriers_without_kernels(in_rank_order(on_one_host(2)), std::nullopt);
  EXPECT_EQ(counted.staged, 2U);
  EXPECT_EQ(counted.by_own_plane, 0U);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_kernel_plane_test
