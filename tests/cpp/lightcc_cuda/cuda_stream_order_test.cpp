// What operations wait for on the fake GPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/staging/stream_order.hpp"

namespace lightcc::cuda::cuda_stream_order_test {
namespace {

constexpr std::size_t kBytes = 4096;

template <typename T>
T value_of(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(*result);
}

/// A stream of somebody else's, which takes its time, and memory that it writes.
class Writer {
 public:
  Writer(const Driver& driver, int device)
      : driver_(driver),
        context_(value_of(Context::retain(driver, device))),
        current_(context_),
        stream_(value_of(Stream::create(driver))),
        pinned_(value_of(allocate_pinned_memory(driver, kBytes))),
        memory_(value_of(allocate_device_memory(driver, kBytes))) {}

  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(stream_.get()); }
  void* data() const { return reinterpret_cast<void*>(memory_.get()); }
  void write(std::byte byte) {
    std::fill_n(static_cast<std::byte*>(pinned_.get()), kBytes, byte);
    EXPECT_EQ(driver_.call().copy_to_device(memory_.get(), pinned_.get(), kBytes, stream_.get()),
              kSuccess);
  }
  /// What lies there, by another stream than the one that writes.
  std::byte read() const {
    const Stream other = value_of(Stream::create(driver_));
    std::vector<std::byte> bytes(kBytes);
    EXPECT_EQ(driver_.call().copy_to_host(bytes.data(), memory_.get(), kBytes, other.get()),
              kSuccess);
    EXPECT_TRUE(other.wait().ok());
    return bytes.back();
  }

 private:
  const Driver& driver_;
  Context context_;
  CurrentContext current_;
  Stream stream_;
  HostMemory pinned_;
  DeviceMemory memory_;
};

class CudaStreamOrder : public ::testing::Test {
 protected:
  void SetUp() override { fake::set("devices=2"); }
  void TearDown() override {
    fake::set("");
    EXPECT_EQ(fake::live(), 0);
  }
  static Driver driver() { return value_of(Driver::open()); }
};

TEST_F(CudaStreamOrder, an_event_is_ready_when_all_its_streams_are) {
  fake::set("devices=2,delay_us=30000");
  const Driver opened = driver();
  Writer first(opened, 0);
  Writer second(opened, 1);
  for (const std::byte byte : {std::byte{1}, std::byte{2}}) {
    first.write(byte);
    second.write(byte);
    auto order = make_stream_order();
    const auto event = value_of(order->record({{0, first.handle()}, {1, second.handle()}}));
    ASSERT_NE(event, nullptr);
    order.reset();  // What the event needs stays.
    while (!value_of(event->is_ready())) {
      std::this_thread::yield();
    }
    EXPECT_EQ(first.read(), byte);
    EXPECT_EQ(second.read(), byte);
  }
}

TEST_F(CudaStreamOrder, default_streams_are_streams_too) {
  const auto order = make_stream_order();
  for (const std::uintptr_t handle : {0U, 1U, 2U}) {
    const auto event = value_of(order->record({{0, handle}}));
    ASSERT_NE(event, nullptr);
    while (!value_of(event->is_ready())) {
      std::this_thread::yield();
    }
  }
}

TEST_F(CudaStreamOrder, nothing_is_to_be_waited_for_without_a_stream) {
  EXPECT_EQ(value_of(make_stream_order()->record({{1, std::nullopt}})), nullptr);
}

TEST_F(CudaStreamOrder, memory_lies_on_the_gpu_that_it_was_allocated_on) {
  const Driver opened = driver();
  const Writer first(opened, 0);
  const Writer second(opened, 1);
  const auto order = make_stream_order();
  EXPECT_EQ(value_of(order->device_of(first.data())), 0);
  EXPECT_EQ(value_of(order->device_of(static_cast<std::byte*>(second.data()) + kBytes - 1)), 1);
  int on_host = 0;
  const auto none = order->device_of(&on_host);
  EXPECT_EQ(none.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("is no GPU's"), std::string::npos);
}

TEST_F(CudaStreamOrder, a_thread_needs_no_context_to_ask_whose_memory_it_is) {
  const Driver opened = driver();
  const auto order = make_stream_order();
  int on_host = 0;
  {
    const Writer second(opened, 1);
    std::thread([&] {
      EXPECT_EQ(value_of(order->device_of(second.data())), 1);
      EXPECT_EQ(order->device_of(&on_host).status().code(), ErrorCode::kInvalidArgument);
    }).join();
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
  fake::set("capturing=1");
  const Status captured = make_stream_order()->record({{0, 1}}).status();
  EXPECT_EQ(captured.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(captured.message().find("captured into a CUDA graph"), std::string::npos);
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
