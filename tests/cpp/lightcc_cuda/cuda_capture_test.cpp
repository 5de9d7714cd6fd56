// Operations on the fake GPU while another thread of the process captures a CUDA graph.
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/staging/stream_order.hpp"

namespace lightcc::cuda::cuda_capture_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

class CudaCaptureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::set_nccl("");
    spoiled_ = fake::spoiled_captures_of_graphs();
  }
  void TearDown() override {
    fake::set("");
    fake::set_nccl("");
    EXPECT_EQ(fake::spoiled_captures_of_graphs(), spoiled_);
  }

 private:
  int spoiled_ = 0;
};

/// Runs each operation, on inputs for which the engine waits.
void run_all(World& world, int rank) {
  const Framework framework(world.topology().local_rank);
  const Tensor tensor(framework, numbers_of(rank));
  for_every_operation_of(world, [&](const std::string& name, const Operation& on_host) {
    Operation operation = tensor.put(on_host);
    operation.ready = framework.ready_event();
    const auto ended = run_one(world, std::move(operation));
    EXPECT_TRUE(ended.ok()) << name << ": " << ended.status().message();
  });
}

TEST_F(CudaCaptureTest, operations_by_way_of_the_host_leave_it_alone) {
  fake::set("devices=3,graph=1");
  run_gpu_job(on_one_host(3), run_all);
}

TEST_F(CudaCaptureTest, operations_by_nccl_leave_it_alone) {
  run_nccl_job(on_one_host(3), run_all, "devices=3,graph=1");
}

TEST_F(CudaCaptureTest, events_may_be_recorded_asked_and_dropped) {
  fake::set("graph=1,delay_us=1000");
  {
    const Framework framework;
    const std::shared_ptr<StreamOrder> order = make_stream_order();
    std::thread([&] {  // It has no context, and the mode "global".
      auto event = value(order->record({{.device = 0, .handle = framework.handle()}}));
      Result<bool> is_ready = event->is_ready();
      while (is_ready.ok() && !*is_ready) {
        is_ready = event->is_ready();
      }
      EXPECT_TRUE(is_ready.ok()) << is_ready.status().message();
    })
        .join();
  }
  EXPECT_EQ(fake::live(), 0);
}

// Whoever captures finds the mode of the thread as it was.
TEST_F(CudaCaptureTest, a_thread_has_its_mode_back_afterwards) {
  const Driver driver = value(Driver::open());
  const Context context = value(Context::retain(driver, 0));
  Address memory = 0;
  {
    const CurrentContext outer(context);
    {
      const CurrentContext inner(context);
    }
    fake::set("graph=1");
    EXPECT_EQ(driver.call().allocate(&memory, 1), kSuccess);
    EXPECT_EQ(driver.call().free(memory), kSuccess);
    fake::set("");
  }
  ASSERT_EQ(driver.call().push_context(context.handle()), kSuccess);
  Option mode = kCaptureModeRelaxed;
  ASSERT_EQ(driver.call().exchange_capture_mode(&mode), kSuccess);
  EXPECT_EQ(mode, 0);
  ASSERT_EQ(driver.call().exchange_capture_mode(&mode), kSuccess);
  ContextHandle* popped = nullptr;
  ASSERT_EQ(driver.call().pop_context(&popped), kSuccess);
}

}  // namespace
}  // namespace lightcc::cuda::cuda_capture_test
