// Top-k compressed all-reduces of the fake GPU's tensors between hosts of one rank: selected and
// added up on the GPU, with the bits of host memory, and nothing but lists copied.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::cuda_topk_jobs_test {
namespace {

using namespace testing;             // NOLINT(google-build-using-namespace)
using namespace testing::topk_jobs;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 3;

/// What ranks have after a training where all tensors are in host memory.
ByRank expected_of(const JobOptions& job, const CompressionSpec& spec) {
  return trained_on_hosts(
      job, [&](World& world, int rank) { return topk_jobs::train(world, rank, nullptr, spec); });
}

// Ways to compress that have something of their own on GPUs, and one that has not.
class CudaCompression : public ::testing::TestWithParam<CompressionSpec> {};
INSTANTIATE_TEST_SUITE_P(All,
                         CudaCompression,
                         ::testing::Values(CompressionSpec{.ratio = 0.01, .momentum = 0.5},
                                           CompressionSpec{
                                               .ratio = 0.02, .warmup_steps = 2, .fp16 = true},
                                           CompressionSpec{.ratio = 0.05, .exact = true},
                                           CompressionSpec{.compressor = Compressor::kInt8}));

TEST_P(CudaCompression, gives_the_hosts_bits_and_keeps_back_what_the_host_does) {
  for (const std::vector<int>& hosts : {std::vector{0, 1, 2}, std::vector{0, 0, 1, 1}}) {
    JobOptions job = options();
    job.size = static_cast<int>(hosts.size());
    job.hosts = hosts;
    ByRank expected = expected_of(job, GetParam());
    fake::set("delay_us=100");
    run_gpu_job(job, [&](World& world, int rank) {
      const Framework framework;
      EXPECT_EQ(topk_jobs::train(world, rank, &framework, GetParam()), of(expected, rank));
      // Two tensors in four steps, less those of the warm-up that travel in another way.
      const bool on_device = GetParam().compressor == Compressor::kTopk && hosts.size() == 3;
      EXPECT_GT(world.stats().compression.tensors, 0U);
      EXPECT_LT(world.stats().compression.on_device, world.stats().compression.tensors);
      EXPECT_GE(world.stats().compression.on_device, on_device ? 4U : 0U);
    });
  }
}

TEST(CudaTopkJobs, a_bucket_takes_as_many_launches_whatever_it_holds) {
  std::vector<std::size_t> sizes = {400};
  std::array<int, 2> launches{};
  for (int& counted : launches) {
    run_gpu_job(options(), [&](World& world, int rank) {
      const Framework framework;
      const int all = launches_of_bucket(world, rank, framework, sizes);
      EXPECT_EQ(world.stats().compression.on_device, 2 * sizes.size());
      if (rank == 0) {
        counted = all;
      }
    });
    for (std::size_t i = 1; i < 40; ++i) {
      sizes.push_back(400 + i * 37 % 400);
    }
  }
  EXPECT_EQ(launches[0], 16 * kRanks);  // A step of float32 makes so many.
  EXPECT_EQ(launches[1], launches[0]);
}

// It needs no other rank's consent.
TEST(CudaTopkJobs, a_rank_whose_gpu_has_no_memory_for_it_goes_by_way_of_the_host) {
  ByRank expected = expected_of(options(), {});
  std::atomic<std::uint64_t> on_device = 0;
  run_gpu_job(options(), [&](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, numbers_of(rank));
    wait_for_all(world);
    if (rank == 0) {
      fake::set("fail=cuMemAllocAsync:2:1");  // For a residual.
    }
    wait_for_all(world);
    std::vector<Numbers> results = topk_jobs::train(world, rank, &framework, {});
    EXPECT_EQ(results, of(expected, rank));
    on_device += world.stats().compression.on_device;
  });
  EXPECT_LT(on_device, 8U * kRanks);
  EXPECT_GT(on_device, 0U);
}

TEST(CudaTopkJobs, a_rank_that_has_joined_contributes_what_it_kept_back) {
  run_gpu_job(options(), [](World& world, int rank) {
    const Framework framework;
    Numbers expected(kCount);
    for (int other = 0; other < kRanks; ++other) {
      const Numbers numbers = numbers_of(other, kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        expected[i] += numbers[i] * (other == 1 ? 1.0F : 2.0F);
      }
    }
    Numbers got = topk_jobs::reduce(world, framework, numbers_of(rank, kCount), {.ratio = 0.02});
    if (rank != 1) {
      const Numbers rest =
          topk_jobs::reduce(world, framework, numbers_of(rank, kCount), {.ratio = 1.0});
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
      operations.push_back(tensors[operations.size()].in(OpType::kAllreduce, name));
      operations.back().request.signature.compression = CompressionSpec{};
    }
    (void)value(run_together(world, std::move(operations)));
    EXPECT_EQ(tensors[0].read(), tensors[1].read());
    EXPECT_EQ(world.stats().compression.on_device, 2U);
  });
}

TEST(CudaTopkJobs, what_is_kept_back_is_saved_scaled_and_loaded) {
  run_gpu_job(options(), [](World& world, int rank) {
    const Framework framework;
    const Numbers numbers = numbers_of(rank, kCount);
    const CompressionSpec spec{.ratio = 0.02};
    topk_jobs::reduce(world, framework, numbers, spec);
    const auto saved = world.save_compression();
    ASSERT_TRUE(saved.ok()) << saved.status().message();
    ASSERT_EQ(saved->size(), 1U);
    const Numbers second = topk_jobs::reduce(world, framework, numbers, spec);
    // Twice as much of everything, and the same once more.
    ASSERT_TRUE(world.load_compression(saved->front()).ok());
    ASSERT_TRUE(world.scale_compression(2.0, 0, {saved->front().name}).ok());
    Numbers doubled = numbers;
    for (float& number : doubled) {
      number *= 2.0F;
    }
    Numbers expected = second;
    for (float& number : expected) {
      number *= 2.0F;
    }
    EXPECT_EQ(topk_jobs::reduce(world, framework, doubled, spec), expected);
    ASSERT_TRUE(world.scale_compression(0.5, 0, {saved->front().name}).ok());
    ASSERT_TRUE(world.load_compression(saved->front()).ok());
    EXPECT_EQ(topk_jobs::reduce(world, framework, numbers, spec), second);
    EXPECT_EQ(world.stats().compression.on_device, 4U);
  });
}

TEST(CudaTopkJobs, a_process_set_takes_what_was_kept_back_along_when_it_goes) {
  JobOptions with_a_set = options();
  with_a_set.process_sets = {{0, 2}};
  with_a_set.environment["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1";
  run_gpu_job(with_a_set, [](World& world, int rank) {
    const Framework framework;
    if (rank != 1) {
      topk_jobs::train(world, rank / 2, &framework, {}, 1);
      EXPECT_GT(world.stats().compression.on_device, 0U);
      EXPECT_EQ(world.save_compression()->size(), 2U);
    }
    wait_for_all(world);
    Operation removal = bare(OpType::kRemoveProcessSet);
    removal.request.signature.root_or_peer = 1;
    (void)value(run_one(world, std::move(removal)));
    EXPECT_EQ(world.save_compression()->size(), 0U);
  });
}

TEST(CudaTopkJobs, a_call_that_fails_ends_the_world_with_its_name) {
  Mutex mutex;
  Status failure;
  run_gpu_job(options(), [&](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, numbers_of(rank, kCount));
    const auto reduce = [&] {
      Operation operation = tensor.in(OpType::kAllreduce, "t");
      operation.request.signature.compression = CompressionSpec{};
      return run_one(world, std::move(operation)).status();
    };
    EXPECT_TRUE(reduce().ok());
    wait_for_all(world);
    if (rank == 0) {
      fake::set("fail=cuLaunchKernel:2:14");
    }
    wait_for_all(world);
    Status status;
    for (int step = 0; step < 20 && status.ok(); ++step) {
      status = reduce();
    }
    EXPECT_FALSE(status.ok());
    const MutexLock lock(mutex);
    failure = status.message().find("CUDA_ERROR") != std::string::npos ? status : failure;
  });
  EXPECT_NE(failure.message().find("cuLaunchKernel: CUDA_ERROR"), std::string::npos)
      << failure.message();
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_jobs_test
