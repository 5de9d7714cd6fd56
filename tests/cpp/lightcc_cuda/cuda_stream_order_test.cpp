// What operations wait for on the fake GPU.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/staging/stream_order.hpp"

namespace lightcc::cuda::cuda_stream_order_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

class CudaStreamOrder : public ::testing::Test {
 protected:
  void SetUp() override { fake::set("devices=2"); }
  void TearDown() override {
    fake::set("");
    EXPECT_EQ(fake::live(), 0);
  }
};

TEST_F(CudaStreamOrder, an_event_is_ready_when_all_its_streams_are) {
  fake::set("devices=2,delay_us=30000");
  const Framework first(0);
  const Framework second(1);
  const Framework other(1);  // Whose stream has written nothing.
  Tensor tensors[] = {Tensor(first, {0.0F}), Tensor(second, {0.0F})};
  const Tensor reader(other, {0.0F});
  for (const float number : {1.0F, 2.0F}) {
    tensors[0].write({number});
    tensors[1].write({number});
    auto order = make_stream_order();
    const auto event = value(order->record({{0, first.handle()}, {1, second.handle()}}));
    ASSERT_NE(event, nullptr);
    order.reset();  // What the event needs stays.
    while (!value(event->is_ready())) {
      std::this_thread::yield();
    }
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(reader.read_at(reinterpret_cast<Address>(tensor.data()), 1), Numbers{number});
    }
  }
}

TEST_F(CudaStreamOrder, nobody_asks_the_driver_again_and_again_when_it_rings) {
  fake::set("devices=1,delay_us=100000");
  const Framework framework(0);
  Tensor tensor(framework, {0.0F});
  const auto order = make_stream_order();
  for (int i = 0; i < 3; ++i) {
    tensor.write({1.0F});
    const auto event = value(order->record({{0, framework.handle()}}));
    const int before = fake::calls();
    ASSERT_TRUE(event->rings(std::make_shared<LoopBell>()));
    while (!value(event->is_ready())) {
      std::this_thread::yield();
    }
    EXPECT_LT(fake::calls() - before, 100);  // Once in 10 ms, for failures; else many thousands.
  }
}

TEST_F(CudaStreamOrder, nothing_is_to_be_waited_for_without_a_stream) {
  EXPECT_EQ(value(make_stream_order()->record({{1, std::nullopt}})), nullptr);
}

TEST_F(CudaStreamOrder, memory_lies_on_the_gpu_that_it_was_allocated_on) {
  const auto order = make_stream_order();
  int on_host = 0;
  {
    const Framework first(0);
    const Framework second(1);
    const Tensor tensors[] = {Tensor(first, {1.0F}), Tensor(second, {1.0F, 2.0F})};
    std::thread([&] {  // It has no context.
      EXPECT_EQ(value(order->device_of(tensors[0].data())), 0);
      EXPECT_EQ(value(order->device_of(static_cast<float*>(tensors[1].data()) + 1)), 1);
      EXPECT_EQ(order->device_of(&on_host).status().code(), ErrorCode::kInvalidArgument);
    })
        .join();
  }
  // Nobody uses a GPU, and none is taken into use for the question.
  const int before = fake::live();
  const Status none = make_stream_order()->device_of(&on_host).status();
  EXPECT_NE(none.message().find("is no GPU's"), std::string::npos) << none.message();
  EXPECT_EQ(fake::live(), before);
}

TEST_F(CudaStreamOrder, what_cannot_be_used_is_told) {
  EXPECT_EQ(make_stream_order()->record({{2, std::nullopt}}).status().message(),
            "there is no cuda:2: this process has 2 GPUs");
  const auto order = make_stream_order("no_such_library.so.1");
  const Status lacking = order->record({{0, std::nullopt}}).status();
  EXPECT_EQ(lacking.code(), ErrorCode::kUnimplemented);
  EXPECT_NE(lacking.message().find("the CUDA driver cannot be opened"), std::string::npos);
  EXPECT_EQ(order->device_of(nullptr).status().message(), lacking.message());
  // The second is CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, of the default stream beside one.
  for (const char* const settings : {"capturing=1", "fail=cuStreamIsCapturing:906:1"}) {
    fake::set(settings);
    const Status captured = make_stream_order()->record({{0, 1}}).status();
    EXPECT_EQ(captured.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(captured.message().find("captured into a CUDA graph"), std::string::npos);
  }
}

TEST_F(CudaStreamOrder, failed_calls_are_told_and_leave_nothing_behind) {
  for (const char* const call : {"cuDeviceGetCount",
                                 "cuDevicePrimaryCtxRetain",
                                 "cuCtxPushCurrent_v2",
                                 "cuStreamIsCapturing",
                                 "cuEventCreate",
                                 "cuEventRecord"}) {
    fake::set(std::string("fail=") + call + ":2:1");
    const Status failed = make_stream_order()->record({{0, 1}}).status();
    EXPECT_EQ(failed.code(), ErrorCode::kSystem) << call;
    const std::string name = std::string(call).substr(0, std::string(call).find('_'));
    EXPECT_NE(failed.message().find(name + ": CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
        << failed.message();
    EXPECT_EQ(fake::live(), 0) << call;
  }
  fake::set("fail=cuPointerGetAttribute:700:1");
  EXPECT_EQ(make_stream_order()->device_of(nullptr).status().code(), ErrorCode::kSystem);
}

}  // namespace
}  // namespace lightcc::cuda::cuda_stream_order_test
