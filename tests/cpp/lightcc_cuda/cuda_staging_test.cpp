// Collectives on tensors of the fake GPU, staged in host memory: the bits of the host's plane.
#include "lightcc_cuda/staging/cuda_staging.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"

namespace lightcc::cuda::cuda_staging_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

class CudaStaging : public ::testing::TestWithParam<bool> {
 protected:
  static JobOptions job() { return GetParam() ? on_hosts({0, 0, 1, 1}) : on_one_host(4); }
};
INSTANTIATE_TEST_SUITE_P(OneHostAndTwo, CudaStaging, ::testing::Bool());

TEST_P(CudaStaging, gives_the_hosts_results_for_every_operation) {
  fake::set("delay_us=200");
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, numbers_of(rank));
    for_every_operation_of(world, [&](const std::string& name, const Operation& operation) {
      const auto on_host = run_one(world, operation);
      expect_same(name, run_one(world, tensor.put(operation)), on_host, tensor);
      EXPECT_EQ(tensor.read(), numbers_of(rank)) << name;
    });
  });
}

TEST_P(CudaStaging, writes_where_an_allocator_says) {
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    const Numbers data = numbers_of(rank);
    const Tensor input(framework, data);
    const Tensor output(framework, Numbers(4 * data.size()));
    Operation operation = input.in(OpType::kAllgather, "allocator");
    std::optional<std::size_t> asked;
    operation.allocator = [&](const std::vector<std::int64_t>&, std::size_t bytes) {
      asked = bytes;
      return Result<void*>(output.data());
    };
    (void)value(run_one(world, std::move(operation)));
    EXPECT_EQ(asked, output.bytes());
    const Numbers all = output.read();
    for (int other = 0; other < 4; ++other) {
      const auto first = all.begin() + other * static_cast<std::ptrdiff_t>(data.size());
      EXPECT_TRUE(std::ranges::equal(numbers_of(other), std::span(&*first, data.size())));
    }
  });
}

TEST(CudaStagingOrder, an_input_is_read_when_its_stream_has_written_it) {
  fake::set("delay_us=2000");
  run_gpu_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework;
    Tensor tensor(framework, Numbers(1000));
    for (int step = 0; step < 5; ++step) {
      tensor.write(Numbers(1000, static_cast<float>(step + 1)));
      Operation operation = tensor.in(OpType::kAllreduce, "t");
      operation.ready = framework.ready_event();
      ASSERT_TRUE(run_one(world, std::move(operation)).ok());
      EXPECT_EQ(tensor.read(), Numbers(1000, 2.0F * static_cast<float>(step + 1))) << rank;
    }
  });
}

TEST(CudaStagingOrder, a_result_goes_behind_what_its_last_stream_was_given) {
  const Framework framework;
  const HostMemory read = value(allocate_pinned_memory(framework.driver(), 4));
  const std::shared_ptr<Staging> staging = make_staging();
  auto result = value(staging->allocate(4, 0));
  result->hand_to(framework.handle());
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

TEST(CudaStagingFailures, a_gpu_without_a_memory_pool_says_so) {
  fake::set("pools=0");
  EXPECT_EQ(make_staging()->allocate(4, 0).status().message(),
            "the GPU has no memory pool (cuMemAllocAsync)");
  fake::set("");
}

}  // namespace
}  // namespace lightcc::cuda::cuda_staging_test
