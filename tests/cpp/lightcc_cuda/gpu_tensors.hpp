// A framework with tensors on the fake GPU, and jobs whose ranks stage them.
#pragma once

#include <algorithm>
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
  /// As operations are told of it.
  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(stream_.get()); }
  int device() const { return device_; }
  void wait() const { EXPECT_TRUE(stream_.wait().ok()); }
  /// When the stream has done what it was given so far. The event outlives this, as a bucket that
  /// its device has not finished holds it after its ranks have their results.
  std::shared_ptr<ReadyEvent> ready_event(Timing timing = Timing::kUnknown) const {
    return value(order_->record({{.device = device_, .handle = handle()}}, timing));
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

/// Calls `body` with each kind of collective, whose output the engine allocates. Ranks send parts
/// of different sizes in an all-to-all.
inline void for_every_operation_of(
    World& world, const std::function<void(const std::string& name, const Operation&)>& body) {
  const auto size = static_cast<std::size_t>(world.topology().size);
  for_every_operation(world.topology().rank, [&](const std::string& name, Operation operation) {
    operation.output.reset();
    if (operation.request.signature.op == OpType::kAlltoall) {
      operation.request.splits.assign(size, 100);
      operation.request.splits.front() += static_cast<std::int64_t>(1000 - 100 * size);
    }
    body(name, operation);
  });
}

/// The operation `name` on a GPU had the host's result, which `reader` can read. `tolerance`: of
/// numbers that were added in another order.
inline void expect_same(const std::string& name,
                        const Result<std::vector<Outcome>>& on_gpu,
                        const Result<std::vector<Outcome>>& on_host,
                        const Tensor& reader,
                        float tolerance = 0.0F) {
  ASSERT_TRUE(on_host.ok()) << on_host.status().message();
  ASSERT_TRUE(on_gpu.ok()) << name << ": " << on_gpu.status().message();
  EXPECT_EQ(on_gpu->front().shape, on_host->front().shape) << name;
  EXPECT_EQ(on_gpu->front().received_splits, on_host->front().received_splits) << name;
  const Numbers got = numbers_in(*on_gpu->front().output, &reader);
  const Numbers expected = numbers_in(*on_host->front().output, nullptr);
  ASSERT_EQ(got.size(), expected.size()) << name;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance) << name << ", element " << i;
  }
}

/// The sums of what numbers_of() gives these ranks.
inline Numbers sums_of(const std::vector<int>& ranks, std::size_t count = 1000) {
  Numbers sums(count);
  for (const int rank : ranks) {
    std::ranges::transform(sums, numbers_of(rank, count), sums.begin(), std::plus<>());
  }
  return sums;
}

/// Numbers whose sum depends on the order of its terms.
inline Numbers rough_numbers(int rank, std::size_t count) {
  Numbers numbers = numbers_of(rank, count);
  for (float& number : numbers) {
    number /= 3.0F;
  }
  return numbers;
}

inline std::vector<Numbers> bucket_of(int rank, const std::vector<std::size_t>& counts) {
  std::vector<Numbers> data;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    data.push_back(rough_numbers(rank + static_cast<int>(i), counts[i]));
  }
  return data;
}

/// How a bucket is reduced.
struct How {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  DataType dtype = DataType::kFloat32;
  bool in_place = true;
};

using RunBucket = std::function<Result<std::vector<Outcome>>(World&, std::vector<Operation>)>;

/// All-reduces `data` as one bucket on these GPUs in turn; without any, in host memory. Returns the
/// results, tensor by tensor. `run`: as run_together(), which it calls.
inline std::vector<Numbers> reduce_bucket(World& world,
                                          std::vector<Numbers> data,
                                          const How& how = {},
                                          const std::vector<const Framework*>& gpus = {},
                                          const RunBucket& run = run_together) {
  std::vector<Operation> operations;
  std::vector<Tensor> tensors;
  tensors.reserve(data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    Operation& operation = operations.emplace_back(allreduce_of("t" + std::to_string(i), data[i]));
    Signature& signature = operation.request.signature;
    signature.reduce_op = how.op;
    signature.prescale = how.prescale;
    signature.postscale = how.postscale;
    // Numbers are memory: of twice as many elements of 16 bits.
    operation.input.dtype = how.dtype;
    operation.input.shape.front() =
        static_cast<std::int64_t>(data[i].size() * sizeof(float) / element_size(how.dtype));
    operation.output = how.in_place ? std::optional(operation.input) : std::nullopt;
    if (!gpus.empty()) {
      operation = tensors.emplace_back(*gpus[i % gpus.size()], data[i]).put(std::move(operation));
    }
  }
  const auto ended = run(world, std::move(operations));
  EXPECT_TRUE(ended.ok()) << ended.status().message();
  for (std::size_t i = 0; ended.ok() && i < data.size(); ++i) {
    const Tensor* const tensor = gpus.empty() ? nullptr : &tensors[i];
    const Numbers input = tensor != nullptr ? std::exchange(data[i], tensor->read()) : data[i];
    if (!how.in_place) {
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(std::span(data[i])), std::as_bytes(std::span(input))))
          << "an input changed";
      data[i] = numbers_in(*(*ended)[i].output, tensor);
    }
  }
  return data;
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
