// Compressed all-reduces of the fake GPU's tensors: between hosts of one rank, by way of the host,
// and on two levels with NCCL within hosts. They have the bits of host memory, and top-k selects
// and adds up on the GPU, with nothing but lists copied.
#include <atomic>
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
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::cuda_topk_jobs_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 3;
constexpr std::size_t kCount = 4001;

/// All tensors are large enough for compression.
JobOptions options(const std::vector<int>& hosts = {0, 1, 2}) {
  JobOptions options = on_hosts(hosts);
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  return options;
}

/// Two hosts of two ranks, and NCCL within each.
JobOptions on_nccl() {
  JobOptions on_levels = options({0, 0, 1, 1});
  on_levels.environment["LIGHT_2D_ALLREDUCE"] = "1";
  return on_levels;
}

Operation compressed(Operation operation, const CompressionSpec& spec = {}) {
  operation.request.signature.compression = spec;
  return operation;
}

constexpr int kSteps = 6;

/// Reduces tensors in one bucket in each step; with a framework on its GPU, but for every third
/// step. One step is skipped, as an input of rank 1 has an infinity. Returns the results of all, in
/// which NaNs become numbers that can be compared. The last tensor is too small for a shard on each
/// rank.
std::vector<Numbers> train(World& world,
                           int rank,
                           const Framework* framework,
                           const CompressionSpec& spec = {},
                           std::uint32_t process_set = 0) {
  std::vector<Numbers> results;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Numbers> data = {
        numbers_of(rank + step, kCount), numbers_of(rank, 300), numbers_of(rank, 5)};
    if (step == 4 && rank == 1) {
      data.front().back() = std::numeric_limits<float>::infinity();
    }
    std::vector<Operation> operations;
    std::vector<Tensor> tensors;
    tensors.reserve(data.size());
    for (Numbers& numbers : data) {
      const std::string name = "t" + std::to_string(operations.size());
      Operation operation = compressed(operation_on(OpType::kAllreduce, name, numbers), spec);
      operation.request.signature.process_set = process_set;
      if (framework != nullptr && step % 3 != 0) {
        operation = tensors.emplace_back(*framework, numbers).put(std::move(operation));
      }
      operations.push_back(std::move(operation));
    }
    (void)value(run_together(world, std::move(operations)));
    for (std::size_t i = 0; i < data.size(); ++i) {
      Numbers& result = results.emplace_back(tensors.empty() ? data[i] : tensors[i].read());
      for (float& number : result) {
        number = std::isnan(number) ? -1e30F : number;
      }
    }
  }
  return results;
}

using ByRank = std::vector<std::vector<Numbers>>;

/// What ranks have after a training where all tensors are in host memory.
ByRank expected_of(const JobOptions& job, const CompressionSpec& spec = {}) {
  ByRank results(static_cast<std::size_t>(job.size));
  run_job(job, [&](World& world, int rank) {
    results[static_cast<std::size_t>(rank)] = train(world, rank, nullptr, spec);
  });
  return results;
}

/// Reduces a tensor of the GPU once. Returns the result.
Numbers reduce(World& world,
               const Framework& framework,
               const Numbers& numbers,
               const CompressionSpec& spec) {
  const Tensor tensor(framework, numbers);
  (void)value(run_one(world, compressed(tensor.in(OpType::kAllreduce, "t"), spec)));
  return tensor.read();
}

class CudaCompression : public ::testing::TestWithParam<CompressionSpec> {};
INSTANTIATE_TEST_SUITE_P(All,
                         CudaCompression,
                         ::testing::Values(CompressionSpec{.ratio = 0.01, .momentum = 0.5},
                                           CompressionSpec{
                                               .ratio = 0.02, .warmup_steps = 2, .fp16 = true},
                                           CompressionSpec{.ratio = 0.4, .exact = true},
                                           CompressionSpec{.ratio = 1.0},
                                           CompressionSpec{.compressor = Compressor::kInt8},
                                           CompressionSpec{.compressor = Compressor::kInt4}));

TEST_P(CudaCompression, gives_the_hosts_bits_and_keeps_back_what_the_host_does) {
  const CompressionSpec& spec = GetParam();
  for (const auto& [job, by_nccl] : {std::pair{options(), false},
                                     std::pair{options({0, 0, 1, 1}), false},
                                     std::pair{on_nccl(), true}}) {
    const ByRank expected = expected_of(job, spec);
    const auto body = [&](World& world, int rank) {
      const Framework framework(by_nccl ? world.topology().local_rank : 0);
      EXPECT_EQ(train(world, rank, &framework, spec), expected[static_cast<std::size_t>(rank)]);
      const CompressionCounters counted = world.stats().compression;
      // Less those of the warm-up, that travel in another way, and of ranks without a shard.
      EXPECT_GT(counted.tensors, 2U * kSteps);
      EXPECT_LT(counted.on_device, counted.tensors);
      // Staged on two levels, they are shards of the host's memory. Three hosts send no lists of
      // so many elements.
      const bool may_be = by_nccl || (job.size == kRanks && spec.ratio < 0.4);
      const bool is_of_gpus = spec.compressor == Compressor::kTopk && spec.ratio < 1.0;
      EXPECT_EQ(counted.on_device > 0, may_be && is_of_gpus);
    };
    fake::set("delay_us=100");
    by_nccl ? run_nccl_job(job, body) : run_gpu_job(job, body);
  }
}

TEST(CudaTopkJobs, shards_of_nccl_have_lists_alone_copied) {
  const auto body = [](const RankOnGpu& on) {
    ASSERT_TRUE(run_one(on.world, compressed(on.tensor.in(OpType::kAllreduce, "t"))).ok());
    wait_for_all(on.world);
    const CompressionCounters counted = on.world.stats().compression;
    // Two hosts use each GPU of the fake driver.
    EXPECT_EQ(fake::copies_of(0).bytes_to_host + fake::copies_of(1).bytes_to_host,
              4 * (counted.sent_bytes + sizeof(TopkProgress)));
    EXPECT_EQ(counted.sent_bytes, 16 + 4 + 200 * 6U);
    EXPECT_EQ(counted.tensors, 1U);
    EXPECT_EQ(counted.on_device, 1U);
    wait_for_all(on.world);
  };
  run_nccl_job_on_tensors(on_nccl(), body, 40000);
}

// It needs no other rank's consent.
TEST(CudaTopkJobs, a_rank_whose_gpu_has_no_memory_for_it_goes_by_way_of_the_host) {
  const ByRank expected = expected_of(options());
  std::atomic<std::uint64_t> on_device = 0;
  run_gpu_job(options(), [&](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, numbers_of(rank));
    wait_for_all(world);
    if (rank == 0) {
      fake::set("fail=cuMemAllocAsync:2:1");  // For a residual.
    }
    wait_for_all(world);
    EXPECT_EQ(train(world, rank, &framework), expected[static_cast<std::size_t>(rank)]);
    on_device += world.stats().compression.on_device;
  });
  EXPECT_LT(on_device, 12U * kRanks);
  EXPECT_GT(on_device, 0U);
}

TEST(CudaTopkJobs, a_rank_that_has_joined_contributes_what_it_kept_back) {
  run_gpu_job(options(), [](World& world, int rank) {
    const Framework framework;
    const Numbers expected = sums_of({0, 0, 1, 2, 2}, kCount);
    Numbers got = reduce(world, framework, numbers_of(rank, kCount), {.ratio = 0.02});
    if (rank != 1) {
      const Numbers rest = reduce(world, framework, numbers_of(rank, kCount), {.ratio = 1.0});
      for (std::size_t i = 0; i < kCount; ++i) {
        got[i] += rest[i];
      }
      EXPECT_EQ(got, expected);
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
  });
}

TEST(CudaTopkJobs, tensors_of_one_bucket_may_be_on_several_gpus) {
  fake::set("devices=2");
  run_gpu_job(options(), [](World& world, int rank) {
    const Framework first(0);
    const Framework second(1);
    const Numbers data = numbers_of(rank, kCount);
    const Tensor tensors[] = {Tensor(first, data), Tensor(second, data)};
    std::vector<Operation> operations;
    for (const char* const name : {"t0", "t1"}) {
      operations.push_back(compressed(tensors[operations.size()].in(OpType::kAllreduce, name)));
    }
    (void)value(run_together(world, std::move(operations)));
    EXPECT_EQ(tensors[0].read(), tensors[1].read());
    EXPECT_EQ(world.stats().compression.on_device, 2U);
  });
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_jobs_test
