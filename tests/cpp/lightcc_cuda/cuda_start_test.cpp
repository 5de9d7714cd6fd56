// What threads of lightcc make on a fake GPU before operations run there: streams and kernels.
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/driver/kernel_images.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::cuda_start_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

void reduce(World& world, const Tensor& tensor, ReduceOp op, bool compresses = false) {
  Operation operation = tensor.in(OpType::kAllreduce, "t", op);
  if (compresses) {
    operation.request.signature.compression = CompressionSpec{};
  }
  (void)value(run_one(world, std::move(operation)));
}

/// Three hosts, all of whose tensors are large enough for compression.
JobOptions options() {
  JobOptions options = on_hosts({0, 1, 2});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  return options;
}

TEST(CudaStart, all_streams_have_the_highest_priority) {
  fake::set_nccl("");
  run_nccl_job_on_tensors(on_one_host(2), [](const RankOnGpu& on) {
    reduce(on.world, on.tensor, ReduceOp::kSum);     // By NCCL.
    reduce(on.world, on.tensor, ReduceOp::kAdasum);  // By way of the host.
    const std::map<int, int> streams = fake::streams_by_priority();
    ASSERT_EQ(streams.size(), 1U);
    EXPECT_EQ(streams.begin()->first, -5);
    EXPECT_GE(streams.begin()->second, 2 * 3);
  });
}

/// Reduces a dense tensor, and then compresses one on the GPU, which loads nothing more.
void compress_after_a_dense_tensor(World& world, int rank) {
  const Framework framework;
  const Tensor tensor(framework, numbers_of(rank));
  reduce(world, tensor, ReduceOp::kSum);
  wait_for_all(world);
  const int before = fake::modules_loaded();
  EXPECT_GT(before, 0);
  wait_for_all(world);
  reduce(world, tensor, ReduceOp::kSum, true);
  reduce(world, tensor, ReduceOp::kAdasum);
  wait_for_all(world);
  EXPECT_EQ(fake::modules_loaded(), before);
  EXPECT_EQ(world.stats().compression.on_device, 1U);
}

TEST(CudaStart, kernels_are_loaded_once_with_the_first_tensor_of_a_gpu) {
  fake::set("");
  run_gpu_job(options(), [](World& world, int rank) {
    compress_after_a_dense_tensor(world, rank);
    EXPECT_EQ(try_gpu(0).message(), "");
    EXPECT_EQ(fake::modules_loaded(), static_cast<int>(ptx_texts().size()));
  });
}

TEST(CudaStart, kernels_are_loaded_before_nccl_runs_anything) {
  fake::set_nccl("");
  JobOptions on_levels = options();
  on_levels.environment["LIGHT_2D_ALLREDUCE"] = "1";
  run_nccl_job(std::move(on_levels), [](World& world, int rank) {
    const int before = fake::modules_loaded();
    wait_for_all(world);
    compress_after_a_dense_tensor(world, rank);
    EXPECT_EQ(fake::modules_loaded(), before);
    EXPECT_GT(fake::operations_of_nccl(), 0);
  });
}

}  // namespace
}  // namespace lightcc::cuda::cuda_start_test
