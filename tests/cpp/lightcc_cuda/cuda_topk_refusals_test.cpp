// What top-k compression in memory of the fake GPU refuses, and how its calls fail.
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"
#include "lightcc_cuda/staging/launcher.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"
#include "lightcc_cuda/topk_kernels_testing.hpp"

namespace lightcc::cuda::cuda_topk_refusals_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

class CudaTopkRefusals : public TopkKernelsTest {};

TEST_F(CudaTopkRefusals, refuse_what_they_cannot_do) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    EXPECT_EQ(kernels.why_unsupported(1, 64), "");
    EXPECT_EQ(kernels.why_unsupported(0, 2), "");
    EXPECT_NE(kernels.why_unsupported(std::size_t{1} << 31, 2).find("takes at most 2147483647"),
              std::string::npos);
    EXPECT_NE(kernels.why_unsupported(1, 65).find("at most 64"), std::string::npos);
    EXPECT_EQ(kernels.load_state({}).status().code(), ErrorCode::kInvalidArgument);
    const auto first = value(kernels.make_state(DataType::kFloat32, 100));
    const auto second = value(kernels.make_state(DataType::kFloat16, 100));
    EXPECT_EQ(first->on_host(), nullptr);
    const OnGpu memory(framework, 400);
    memory.write(Buffer(400));
    Buffer list(max_list_bytes(100, 100, {}));
    TopkOutcome outcome;
    const auto step_of = [&](ShardResidual& state, std::size_t k = 1, std::size_t capacity = 1) {
      return TopkStep{.state = &state,
                      .shard = memory.data(),
                      .request = {.k = k, .capacity = capacity},
                      .list = list,
                      .outcome = &outcome};
    };
    const auto refusal_of = [&](const std::vector<TopkStep>& steps) {
      return kernels.compress(steps).status();
    };
    const Status mixed = refusal_of({step_of(*first), step_of(*second)});
    EXPECT_EQ(mixed.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(mixed.message().find("float32 and float16"), std::string::npos) << mixed.message();
    EXPECT_EQ(refusal_of({step_of(*first), step_of(*first)}).code(), ErrorCode::kInternal);
    for (const TopkStep& step : {step_of(*first, 0), step_of(*first, 2), step_of(*first, 1, 101)}) {
      EXPECT_EQ(refusal_of({step}).code(), ErrorCode::kInvalidArgument);
    }
    EXPECT_FALSE(first->is_pending());
    EXPECT_FALSE(second->is_pending());
    const std::vector<TopkStep> good{step_of(*first)};
    EXPECT_TRUE(finish(kernels.compress(good)).ok());
    EXPECT_EQ(refusal_of(good).code(), ErrorCode::kInternal);  // It is pending.
    Bytes bytes;
    EXPECT_EQ(first->save(bytes).code(), ErrorCode::kInternal);
    const auto sum_of = [&](std::vector<TopkListView> lists, DataType dtype) {
      return TopkSum{
          .lists = std::move(lists), .out = memory.data(), .elements = 100, .dtype = dtype};
    };
    const TopkListView none{.elements = 100, .format = {}, .non_finite = true};
    const TopkSum two_types[] = {sum_of({none}, DataType::kFloat32),
                                 sum_of({none}, DataType::kFloat16)};
    EXPECT_EQ(kernels.merge(two_types).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(merge(kernels, sum_of({}, DataType::kFloat32)).code(), ErrorCode::kInvalidArgument);
  });
}

TEST_F(CudaTopkRefusals, a_gpu_without_memory_or_kernels_objects_from_then_on) {
  with_gpu([](const Framework& /*framework*/, CompressionKernels& kernels) {
    EXPECT_TRUE(kernels.make_state(DataType::kFloat32, 100).ok());
    fake::set("fail=cuMemAllocAsync:2:1");
    const auto made = kernels.make_state(DataType::kFloat32, 100);
    EXPECT_EQ(made.status().code(), ErrorCode::kSystem);
    EXPECT_EQ(kernels.why_unsupported(100, 2),
              "cuda:0: cuMemAllocAsync: CUDA_ERROR_OUT_OF_MEMORY (of the fake driver)");
  });
  fake::set("ptx=0");
  with_gpu([](const Framework& /*framework*/, CompressionKernels& kernels) {
    EXPECT_EQ(kernels.make_state(DataType::kFloat32, 100).status().code(),
              ErrorCode::kUnimplemented);
    EXPECT_NE(kernels.why_unsupported(100, 2).find("cannot load the kernels 'bucket'"),
              std::string::npos)
        << kernels.why_unsupported(100, 2);
  });
}

// What was told before still counts, though the GPU had not heard of it.
TEST_F(CudaTopkRefusals, a_step_whose_job_does_not_run_leaves_the_one_before) {
  with_gpu([](const Framework& framework, CompressionKernels& /*kernels*/) {
    constexpr std::size_t kSize = 3000;
    const auto to_host = std::make_shared<Launcher>(kDriverFile, 0);
    CudaTopkKernels of_gpu(to_host, std::make_shared<Launcher>(kDriverFile, 0), 0);
    const OnGpu memory(framework, kSize * sizeof(float));
    Rng rng(1);
    for (const double momentum : {0.0, 0.9}) {
      for (const bool is_last_committed : {true, false}) {
        const auto on_host = value(host_kernels().make_state(DataType::kFloat32, kSize));
        const auto on_gpu = value(of_gpu.make_state(DataType::kFloat32, kSize));
        TopkOutcome outcome;
        Buffer list(max_list_bytes(kSize, 50, {}));
        TopkRequest request{.k = 40, .capacity = 50, .momentum = momentum};
        for (const bool is_committed : {true, is_last_committed}) {
          const Buffer shard = tensor_of(DataType::kFloat32, normal_values(rng, kSize));
          memory.write(shard);
          ASSERT_TRUE(
              compress(host_kernels(), *on_host, shard.data(), request, list, outcome).ok());
          ASSERT_TRUE(compress(of_gpu, *on_gpu, memory.data(), request, list, outcome).ok());
          for (ShardResidual* const state : {on_host.get(), on_gpu.get()}) {
            is_committed ? state->commit() : state->rollback();
          }
        }
        std::promise<void> goes_on;
        to_host->post(std::make_shared<Job>([&](const GpuSite& /*gpu*/) {
          goes_on.get_future().wait();
          return Status();
        }));
        request.momentum = 0.9 - momentum;
        // The work is dropped before its job runs.
        const TopkStep step{.state = on_gpu.get(),
                            .shard = memory.data(),
                            .request = request,
                            .list = list,
                            .outcome = &outcome};
        ASSERT_TRUE(of_gpu.compress({&step, 1}).ok());
        goes_on.set_value();
        on_gpu->rollback();
        EXPECT_EQ(saved(*on_gpu), saved(*on_host));
      }
    }
  });
}

/// What a step says when its N-th such call fails; nothing where there are fewer.
Status failure_of_step(const std::string& call, int code, int turn) {
  Status failure;
  const std::shared_ptr<Staging> staging = make_staging();
  const Framework framework;
  CompressionKernels& kernels = *staging->topk_kernels(0);
  auto state = value(kernels.make_state(DataType::kFloat32, 100));
  const OnGpu memory(framework, 400);
  memory.write(Buffer(400, std::byte{1}));
  Buffer list(max_list_bytes(100, 10, {}));
  TopkOutcome outcome;
  const TopkRequest request{.k = 10, .capacity = 10, .fp16 = true, .momentum = 0.5};
  const Buffer before = saved(*state);
  fake::set("fail=" + call + ":" + std::to_string(code) + ":" + std::to_string(turn));
  failure = compress(kernels, *state, memory.data(), request, list, outcome);
  if (failure.ok()) {
    const TopkListView view = value(
        parse_list({list.data(), outcome.bytes}, 100, {.dtype = DataType::kFloat32, .fp16 = true}));
    failure = merge(kernels, {.lists = {view}, .out = memory.data(), .elements = 100});
  }
  state->rollback();
  fake::set("");
  EXPECT_EQ(saved(*state), before);
  return failure;
}

TEST_F(CudaTopkRefusals, a_call_that_fails_is_a_typed_error_and_undoes_nothing_else) {
  struct Call {
    const char* name;
    int calls;  ///< A step and a merge make so many.
  };
  for (const Call& call : {Call{"cuMemAllocAsync", 2},
                           Call{"cuMemHostAlloc", 2},
                           Call{"cuMemcpyHtoDAsync_v2", 2},
                           Call{"cuMemcpyDtoHAsync_v2", 2},
                           Call{"cuMemsetD8Async", 2},
                           Call{"cuLaunchKernel", 16}}) {
    const int before = fake::live();
    for (int turn = 1; turn <= call.calls; ++turn) {
      const Status failure = failure_of_step(call.name, 2, turn);
      EXPECT_EQ(failure.code(), ErrorCode::kSystem) << call.name << ' ' << turn;
      const std::string name(call.name);
      EXPECT_NE(failure.message().find(name.substr(0, name.find('_'))), std::string::npos)
          << failure.message();
      EXPECT_EQ(fake::live(), before);
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_refusals_test
