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
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::cuda_topk_jobs_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_gpu_job;
using testing::Tensor;
using testing::wait_for_all;
using topk_jobs::ByRank;
using topk_jobs::kCount;
using topk_jobs::kLaunches;
using topk_jobs::kRanks;

class CudaTopkOfJobs : public ::testing::TestWithParam<CompressionSpec> {};
INSTANTIATE_TEST_SUITE_P(All, CudaTopkOfJobs, topk_jobs::specs());

TEST_P(CudaTopkOfJobs, gives_the_hosts_bits_and_keeps_back_what_the_host_does) {
  ByRank expected = topk_jobs::trained_on_hosts(topk_jobs::options(), GetParam());
  fake::set("delay_us=100");
  run_gpu_job(topk_jobs::options(), [&](World& world, int rank) {
    const Framework framework;
    EXPECT_EQ(topk_jobs::train(world, rank, &framework, GetParam()), topk_jobs::of(expected, rank));
    // Two tensors in four steps, less those of the warm-up that travel in another way.
    EXPECT_GE(world.stats().compression.on_device, 4U);
    EXPECT_LT(world.stats().compression.on_device, world.stats().compression.tensors);
  });
}

class CudaTopkJobs : public ::testing::Test {};

TEST_F(CudaTopkJobs, copies_lists_alone) {
  run_gpu_job(topk_jobs::options(), [](World& world, int rank) {
    const Framework framework;
    Numbers data = numbers_of(rank, 40000);
    const Tensor tensor(framework, data);
    wait_for_all(world);
    if (rank == 0) {
      fake::set("");
    }
    wait_for_all(world);
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
    operation.request.signature.compression = CompressionSpec{};
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    wait_for_all(world);
    // All ranks use one GPU here, and their lists have as many entries: 400.
    const std::size_t list = world.stats().compression.sent_bytes / (kRanks - 1);
    EXPECT_EQ(list, 16 + 4 + 400 * 6U);
    EXPECT_EQ(world.stats().compression.on_device, 1U);
    const fake::Copies copies = fake::copies_of(0);
    EXPECT_EQ(copies.bytes_to_host, kRanks * (list + sizeof(TopkProgress)));
    const auto aligned = [](std::size_t bytes) { return (bytes + 15) / 16 * 16; };
    const std::size_t tables =
        sizeof(TopkTensor) + aligned(sizeof(MergeTensor)) + aligned(kRanks * sizeof(MergeList));
    EXPECT_EQ(copies.bytes_to_device, kRanks * (kRanks * aligned(list) + tables));
    wait_for_all(world);
  });
}

int launches_of_bucket(std::size_t tensors) {
  int launches = 0;
  run_gpu_job(topk_jobs::options(), [&](World& world, int rank) {
    const Framework framework;
    const int counted =
        testing::launches_of_bucket(world, rank, framework, topk_jobs::sizes(tensors));
    EXPECT_EQ(world.stats().compression.on_device, 2 * tensors);
    if (rank == 0) {
      launches = counted;
    }
  });
  return launches;
}

TEST_F(CudaTopkJobs, a_bucket_takes_as_many_launches_whatever_it_holds) {
  const int of_one = launches_of_bucket(1);
  EXPECT_EQ(of_one, kLaunches * kRanks);
  EXPECT_EQ(launches_of_bucket(40), of_one);
}

// It needs no other rank's consent.
TEST_F(CudaTopkJobs, a_rank_whose_gpu_has_no_memory_for_it_goes_by_way_of_the_host) {
  ByRank expected = topk_jobs::trained_on_hosts(topk_jobs::options(), {});
  std::atomic<std::uint64_t> on_device = 0;
  run_gpu_job(topk_jobs::options(), [&](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, numbers_of(rank));
    wait_for_all(world);
    if (rank == 0) {
      fake::set("fail=cuMemAllocAsync:2:1");  // For a residual.
    }
    wait_for_all(world);
    std::vector<Numbers> results = topk_jobs::train(world, rank, &framework, {});
    EXPECT_EQ(results, topk_jobs::of(expected, rank));
    on_device += world.stats().compression.on_device;
  });
  EXPECT_LT(on_device, 8U * kRanks);
  EXPECT_GT(on_device, 0U);
}

TEST_F(CudaTopkJobs, a_rank_that_has_joined_contributes_what_it_kept_back) {
  run_gpu_job(topk_jobs::options(), [](World& world, int rank) {
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

TEST_F(CudaTopkJobs, tensors_of_one_bucket_may_be_on_several_gpus) {
  fake::set("devices=2");
  run_gpu_job(topk_jobs::options(), [](World& world, int rank) {
    const Framework first(0);
    const Framework second(1);
    Numbers data = numbers_of(rank, kCount);
    const Tensor tensors[] = {Tensor(first, data), Tensor(second, data)};
    std::vector<Operation> operations;
    for (const Tensor& tensor : tensors) {
      operations.push_back(tensor.put(
          operation_on(OpType::kAllreduce, "t" + std::to_string(operations.size()), data)));
      operations.back().request.signature.compression = CompressionSpec{};
    }
    const auto handle =
        world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    EXPECT_EQ(tensors[0].read(), tensors[1].read());
    EXPECT_EQ(world.stats().compression.on_device, 2U);
  });
}

TEST_F(CudaTopkJobs, what_is_kept_back_is_saved_scaled_and_loaded) {
  run_gpu_job(topk_jobs::options(), [](World& world, int rank) {
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

TEST_F(CudaTopkJobs, a_process_set_takes_what_was_kept_back_along_when_it_goes) {
  run_gpu_job(topk_jobs::with_a_set(topk_jobs::options()), [](World& world, int rank) {
    topk_jobs::expect_a_set_to_take_all_along(world, rank, [](const World& of_set) {
      EXPECT_GT(of_set.stats().compression.on_device, 0U);
    });
  });
}

TEST_F(CudaTopkJobs, a_call_that_fails_ends_the_world_with_its_name) {
  for (const char* const call : {"cuLaunchKernel:719:3",
                                 "cuMemcpyDtoHAsync_v2:2:1",
                                 "cuMemcpyHtoDAsync_v2:2:2",
                                 "cuLaunchKernel:2:14"}) {
    Mutex mutex;
    Status failure;
    run_gpu_job(topk_jobs::options(), [&](World& world, int rank) {
      const Framework framework;
      Numbers data = numbers_of(rank, kCount);
      const Tensor tensor(framework, data);
      const auto reduce = [&] {
        Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
        operation.request.signature.compression = CompressionSpec{};
        return run_one(world, std::move(operation)).status();
      };
      EXPECT_TRUE(reduce().ok());
      wait_for_all(world);
      if (rank == 0) {
        fake::set(std::string("fail=") + call);
      }
      wait_for_all(world);
      Status status;
      for (int step = 0; step < 20 && status.ok(); ++step) {
        status = reduce();
      }
      EXPECT_FALSE(status.ok());
      const MutexLock lock(mutex);
      if (status.message().find("CUDA_ERROR") != std::string::npos) {
        failure = status;
      }
    });
    const std::string name(call);
    EXPECT_NE(failure.message().find("CUDA_ERROR"), std::string::npos) << name;
    if (name.find(":719:") == std::string::npos) {  // Else other calls fail as well.
      EXPECT_NE(failure.message().find(name.substr(0, name.find_first_of("_:"))), std::string::npos)
          << failure.message();
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_jobs_test
