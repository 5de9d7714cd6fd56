// A framework with tensors on the fake GPU, and jobs whose ranks stage them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"
#include "lightcc_cuda/staging/stream_order.hpp"

namespace lightcc::cuda::testing {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

template <typename T>
T value(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(*result);
}

/// A framework on one rank: its context and stream, on the thread that makes it.
class Framework {
 public:
  explicit Framework(int device = 0)
      : driver_(value(Driver::open())),
        context_(value(Context::retain(driver_, device))),
        current_(context_),
        stream_(value(Stream::create(driver_))),
        order_(make_stream_order()),
        device_(device) {}

  const Driver& driver() const { return driver_; }
  const Context& context() const { return context_; }
  StreamHandle* stream() const { return stream_.get(); }
  int device() const { return device_; }
  void wait() const { EXPECT_TRUE(stream_.wait().ok()); }
  /// When the stream has done what it was given so far. The event outlives this, as a bucket that
  /// its device has not finished holds it after its ranks have their results.
  std::shared_ptr<ReadyEvent> ready_event(Timing timing = Timing::kUnknown) const {
    return value(order_->record(
        {{.device = device_, .handle = reinterpret_cast<std::uintptr_t>(stream_.get())}}, timing));
  }

 private:
  Driver driver_;
  Context context_;
  CurrentContext current_;
  Stream stream_;
  std::shared_ptr<StreamOrder> order_;
  int device_;
};

/// A tensor of the GPU.
class Tensor {
 public:
  Tensor(const Framework& framework, Numbers numbers)
      : framework_(framework),
        count_(numbers.size()),
        staged_(value(allocate_pinned_memory(framework.driver(), bytes()))),
        memory_(allocate(framework, std::max<std::size_t>(bytes(), 1))) {
    write(numbers);
    framework.wait();
  }

  std::size_t bytes() const { return count_ * sizeof(float); }
  void* data() const { return reinterpret_cast<void*>(memory_.get()); }
  /// In the order of the framework's stream.
  void write(const Numbers& numbers) {
    std::copy(numbers.begin(), numbers.end(), static_cast<float*>(staged_.get()));
    EXPECT_EQ(framework_.driver().call().copy_to_device(
                  memory_.get(), staged_.get(), bytes(), framework_.stream()),
              kSuccess);
  }
  Numbers read() const { return read_at(memory_.get(), count_); }
  Numbers read_at(Address address, std::size_t count) const {
    Numbers numbers(count);
    if (count == 0) {
      return numbers;  // There is nowhere to copy to.
    }
    EXPECT_EQ(framework_.driver().call().copy_to_host(
                  numbers.data(), address, count * sizeof(float), framework_.stream()),
              kSuccess);
    framework_.wait();
    return numbers;
  }
  /// Moves `operation` to the GPU.
  Operation put(Operation operation) const {
    const auto move = [&](TensorRef& tensor) {
      tensor.data = data();
      tensor.memory = {MemoryKind::kCuda, framework_.device()};
    };
    move(operation.input);
    if (operation.output.has_value()) {
      move(*operation.output);
    }
    return operation;
  }
  /// An operation on this tensor, as operation_on() makes it.
  Operation in(OpType op, std::string name, ReduceOp reduce_op = ReduceOp::kSum) const {
    Numbers unread(count_);
    Operation operation = put(operation_on(op, std::move(name), unread));
    operation.request.signature.reduce_op = reduce_op;
    return operation;
  }

 private:
  static DeviceMemory allocate(const Framework& framework, std::size_t bytes) {
    const CurrentContext current(framework.context());  // The thread may have a later framework's.
    return value(allocate_device_memory(framework.driver(), bytes));
  }

  const Framework& framework_;
  std::size_t count_;
  HostMemory staged_;
  DeviceMemory memory_;
};

/// A result that the engine allocated, from wherever it is.
inline Numbers numbers_in(OutputBuffer& output, const Tensor* reader) {
  const std::size_t count = output.size_bytes() / sizeof(float);
  if (reader != nullptr) {
    return reader->read_at(reinterpret_cast<Address>(output.data()), count);
  }
  const auto* const first = reinterpret_cast<const float*>(output.data());
  return {first, first + count};
}

inline void wait_for_all(World& world) {
  EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
}

/// Runs ranks with CUDA memory; afterwards nothing of the driver's is left.
inline void run_gpu_job(JobOptions options, const std::function<void(World&, int)>& body) {
  options.staging = [](int) { return make_staging(); };
  run_job(options, body);
  fake::set("");
  EXPECT_EQ(fake::live(), 0);
}

}  // namespace lightcc::cuda::testing
