// Collectives on tensors of the fake GPU, staged in host memory: the bits of the host's plane.
#include "lightcc_cuda/staging/cuda_staging.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
#include "lightcc_cuda/staging/pinned_pool.hpp"

namespace lightcc::cuda::cuda_staging_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::for_every_operation;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using testing::Framework;
using testing::numbers_in;
using testing::run_gpu_job;
using testing::Tensor;
using testing::value;

JobOptions two_hosts() {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1K";
  return options;
}

class CudaStaging : public ::testing::TestWithParam<bool> {
 protected:
  static JobOptions job() { return GetParam() ? two_hosts() : on_one_host(4); }
};
INSTANTIATE_TEST_SUITE_P(OneHostAndTwo, CudaStaging, ::testing::Bool());

TEST_P(CudaStaging, gives_the_hosts_results_for_every_operation) {
  fake::set("delay_us=200");
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, numbers_of(rank));
    for_every_operation(rank, [&](const std::string& name, Operation operation) {
      operation.output.reset();
      auto on_host = run_one(world, operation);
      auto on_gpu = run_one(world, tensor.put(operation));
      ASSERT_TRUE(on_host.ok()) << on_host.status().message();
      ASSERT_TRUE(on_gpu.ok()) << on_gpu.status().message();
      EXPECT_EQ(on_gpu->front().shape, on_host->front().shape) << name;
      EXPECT_EQ(on_gpu->front().received_splits, on_host->front().received_splits) << name;
      EXPECT_EQ(numbers_in(*on_gpu->front().output, &tensor),
                numbers_in(*on_host->front().output, nullptr))
          << name << ", rank " << rank;
      EXPECT_EQ(tensor.read(), numbers_of(rank)) << name;
    });
  });
}

TEST_P(CudaStaging, writes_where_the_caller_says) {
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    Numbers data = numbers_of(rank);
    Numbers expected(data.size());
    for (int other = 0; other < 4; ++other) {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += numbers_of(other)[i];
      }
    }
    const Tensor in_place(framework, data);
    Operation operation = operation_on(OpType::kAllreduce, "in place", data);
    operation.request.signature.reduce_op = ReduceOp::kSum;
    ASSERT_TRUE(run_one(world, in_place.put(operation)).ok());
    EXPECT_EQ(in_place.read(), expected);

    const Tensor input(framework, data);
    const Tensor output(framework, Numbers(4 * data.size()));
    operation = input.put(operation_on(OpType::kAllgather, "allocator", data));
    std::optional<std::size_t> asked;
    operation.allocator = [&](const std::vector<std::int64_t>&, std::size_t bytes) {
      asked = bytes;
      return Result<void*>(output.data());
    };
    const auto gathered = run_one(world, std::move(operation));
    ASSERT_TRUE(gathered.ok()) << gathered.status().message();
    EXPECT_EQ(asked, output.bytes());
    const Numbers all = output.read();
    for (int other = 0; other < 4; ++other) {
      const auto first = all.begin() + other * static_cast<std::ptrdiff_t>(data.size());
      EXPECT_TRUE(std::ranges::equal(numbers_of(other), std::span(&*first, data.size())));
    }
  });
}

TEST_P(CudaStaging, carries_messages_and_what_has_no_elements) {
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    if (rank < 2) {
      Operation operation =
          tensor.put(operation_on(rank == 0 ? OpType::kSend : OpType::kRecv, "message", data));
      operation.request.signature.root_or_peer = 1 - rank;
      const auto carried = run_one(world, std::move(operation));
      ASSERT_TRUE(carried.ok()) << carried.status().message();
      EXPECT_EQ(tensor.read(), numbers_of(0));
    }
    Operation empty = tensor.put(operation_on(OpType::kAllreduce, "empty", data));
    empty.input.shape = empty.output->shape = {0};
    EXPECT_TRUE(run_one(world, std::move(empty)).ok());
  });
}

TEST_P(CudaStaging, a_rank_that_has_joined_contributes_zeros) {
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    if (rank == 3) {
      EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
      return;
    }
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
    operation.request.signature.reduce_op = ReduceOp::kSum;
    const auto reduced = run_one(world, std::move(operation));
    ASSERT_TRUE(reduced.ok()) << reduced.status().message();
    const Numbers got = tensor.read();
    const Numbers parts[] = {numbers_of(0), numbers_of(1), numbers_of(2)};
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], parts[0][i] + parts[1][i] + parts[2][i]) << i;
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
  });
}

/// What a tensor is after some compressed steps, on the host or on the GPU.
std::vector<Numbers> train(World& world,
                           int rank,
                           const Framework* framework,
                           const CompressionSpec& spec) {
  std::vector<Numbers> results;
  for (int step = 0; step < 6; ++step) {
    Numbers data = numbers_of(rank + step, 4000);
    Operation operation = operation_on(OpType::kAllreduce, "t", data);
    operation.request.signature.compression = spec;
    std::optional<Tensor> tensor;
    if (framework != nullptr && step % 3 != 0) {
      operation = tensor.emplace(*framework, data).put(std::move(operation));
    }
    const auto ended = run_one(world, std::move(operation));
    EXPECT_TRUE(ended.ok()) << ended.status().message();
    results.push_back(tensor.has_value() ? tensor->read() : data);
  }
  return results;
}

TEST(CudaStagingOfCompression, what_was_kept_back_is_the_hosts) {
  const CompressionSpec specs[] = {{.ratio = 0.01, .momentum = 0.5},
                                   {.compressor = Compressor::kInt8}};
  for (const CompressionSpec& spec : specs) {
    std::array<std::vector<Numbers>, 4> expected;
    lightcc::testing::run_job(two_hosts(), [&](World& world, int rank) {
      expected[static_cast<std::size_t>(rank)] = train(world, rank, nullptr, spec);
    });
    run_gpu_job(two_hosts(), [&](World& world, int rank) {
      const Framework framework;
      EXPECT_EQ(train(world, rank, &framework, spec), expected[static_cast<std::size_t>(rank)])
          << compressor_name(spec.compressor);
      EXPECT_GT(world.stats().compression.tensors, 0U);
    });
  }
}

TEST(CudaStagingOrder, an_input_is_read_when_its_stream_has_written_it) {
  fake::set("delay_us=2000");
  run_gpu_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework;
    Tensor tensor(framework, Numbers(1000));
    for (int step = 0; step < 5; ++step) {
      Numbers data(1000, static_cast<float>(step + 1));
      tensor.write(data);
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      operation.ready = framework.ready_event();
      ASSERT_TRUE(run_one(world, std::move(operation)).ok());
      EXPECT_EQ(tensor.read(), Numbers(1000, 2.0F * static_cast<float>(step + 1))) << rank;
    }
  });
}

TEST(CudaStagingOrder, a_rank_may_have_tensors_on_several_gpus) {
  fake::set("devices=2");
  run_gpu_job(on_one_host(2), [](World& world, int rank) {
    std::vector<Operation> operations;
    Numbers data = numbers_of(rank);
    const Framework first(0);
    const Framework second(1);
    const Tensor tensors[] = {Tensor(first, data), Tensor(second, data)};
    for (const Tensor& tensor : tensors) {
      operations.push_back(tensor.put(
          operation_on(OpType::kAllreduce, "t" + std::to_string(operations.size()), data)));
      operations.back().request.signature.reduce_op = ReduceOp::kMin;
    }
    const auto handle =
        world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    EXPECT_EQ(tensors[0].read(), tensors[1].read());
  });
}

TEST(CudaStagingOrder, a_result_goes_behind_what_its_last_stream_was_given) {
  const Framework framework;
  const HostMemory read = value(allocate_pinned_memory(framework.driver(), 4));
  const std::shared_ptr<Staging> staging = make_staging();
  auto result = value(staging->allocate(4, 0));
  result->hand_to(reinterpret_cast<std::uintptr_t>(framework.stream()));
  fake::set("hold=0:0");
  const Code queued = framework.driver().call().copy_to_host(
      read.get(), gpu_address(result->data()), 4, framework.stream());
  EXPECT_EQ(queued, kSuccess);
  result = nullptr;
  staging->prepare(0);
  EXPECT_TRUE(staging->allocate(4, 0).ok());  // The GPU is not broken.
  fake::set("");
  framework.wait();
}

TEST(CudaStagingOrder, pinned_memory_is_used_again_for_what_is_not_much_smaller) {
  const Framework framework;
  PinnedPool pool(framework.driver());
  fake::set("");
  for (const std::size_t bytes : {65U << 20, 40U << 20, 3U << 20, 1U}) {
    (void)value(pool.take(bytes));
  }
  EXPECT_EQ(fake::pinned_growth(), (70U << 20) + 4096);
}

/// The error of a rank that fails, when a call does. What has got its result may not fail.
Status failure_with(const std::string& call, int code) {
  Mutex mutex;
  Status failure;
  run_gpu_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework;
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 1) {
      fake::set("fail=" + call + ":" + std::to_string(code) + ":1");
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    Operation operation = tensor.put(operation_on(OpType::kAllgather, "t", data));
    const auto ended = run_one(world, std::move(operation));
    const MutexLock lock(mutex);
    failure = ended.ok() ? failure : ended.status();
  });
  return failure;
}

TEST(CudaStagingFailures, end_the_world_with_the_call_and_leave_nothing_behind) {
  for (const char* const call : {"cuDevicePrimaryCtxRetain",
                                 "cuCtxPushCurrent_v2",
                                 "cuStreamCreateWithPriority",
                                 "cuMemHostAlloc",
                                 "cuMemcpyDtoHAsync_v2",
                                 "cuMemcpyHtoDAsync_v2"}) {
    for (const int code : {2, 700}) {
      const Status failure = failure_with(call, code);
      // From 700 on other calls fail as well, so that another one may be the first.
      const std::string name = std::string(call).substr(0, std::string(call).find('_'));
      const std::string expected = code == 2 ? name + ": CUDA_ERROR_OUT_OF_MEMORY"
                                             : std::string(": CUDA_ERROR_ILLEGAL_ADDRESS");
      EXPECT_NE(failure.message().find(expected), std::string::npos) << failure.message();
    }
  }
}

TEST(CudaStagingFailures, a_gpu_without_a_memory_pool_says_so) {
  fake::set("pools=0");
  EXPECT_EQ(make_staging()->allocate(4, 0).status().message(),
            "the GPU has no memory pool (cuMemAllocAsync)");
  fake::set("");
}

}  // namespace
}  // namespace lightcc::cuda::cuda_staging_test
