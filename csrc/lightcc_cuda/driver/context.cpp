#include "lightcc_cuda/driver/context.hpp"

#include <algorithm>
#include <cstdint>

namespace lightcc::cuda {

Result<Context> Context::retain(const Driver& driver, int index) {
  Device device = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.device(&device, index));
  ContextHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.retain_context(&handle, device));
  const auto release = [&driver, device](ContextHandle* /*handle*/) {
    static_cast<void>(driver.call().release_context(device));
  };
  return Context(driver, device, std::shared_ptr<ContextHandle>(handle, release));
}

CurrentContext::CurrentContext(const Context& context)
    : driver_(context.driver()),
      status_(driver_.push_context(context.handle())),
      has_exchanged_(status_.ok() &&
                     driver_.call().exchange_capture_mode(&capture_mode_) == kSuccess) {}

CurrentContext::~CurrentContext() {
  if (has_exchanged_) {
    static_cast<void>(driver_.call().exchange_capture_mode(&capture_mode_));
  }
  if (status_.ok()) {
    ContextHandle* popped = nullptr;
    static_cast<void>(driver_.call().pop_context(&popped));
  }
}

Result<bool> is_captured(const Driver& driver, StreamHandle* stream) {
  int captured = 0;
  const Code code = driver.call().capture_status(stream, &captured);
  if (code == kErrorCaptureImplicit) {
    return true;
  }
  LIGHTCC_RETURN_IF_ERROR(driver.check(code, "cuStreamIsCapturing"));
  return captured != 0;
}

Result<Stream> Stream::create(const Driver& driver) {
  // The lowest, 0, is what streams of frameworks have. The highest is a negative number.
  int lowest = 0;
  int highest = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.priority_range(&lowest, &highest));
  StreamHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.create_stream(&handle, kStreamNonBlocking, highest));
  return Stream(driver, handle);
}

Stream::~Stream() {
  if (get() != nullptr) {
    static_cast<void>(wait());
  }
}

Result<DeviceMemory> allocate_device_memory(const Driver& driver, std::size_t bytes) {
  Address address = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.allocate(&address, bytes));
  return DeviceMemory(driver, address);
}

Result<HostMemory> allocate_pinned_memory(const Driver& driver, std::size_t bytes) {
  void* address = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.allocate_host(&address, bytes, kHostMemoryForAllContexts));
  return HostMemory(driver, address);
}

Result<std::shared_ptr<std::byte>> allocate_in_order(const Driver& driver,
                                                     std::size_t bytes,
                                                     StreamHandle* stream,
                                                     OutputBuffer::LastStream last_stream) {
  Address address = 0;
  const std::size_t given = std::max<std::size_t>(bytes, 1);  // It refuses to give nothing.
  LIGHTCC_RETURN_IF_ERROR(driver.allocate_in_order(&address, given, stream));
  const auto free = [&driver, address, stream, last_stream = std::move(last_stream)](auto*) {
    const bool is_used = last_stream != nullptr && last_stream->has_value();
    auto* const last = is_used ? reinterpret_cast<StreamHandle*>(**last_stream) : stream;  // NOLINT
    const Result<bool> captured = is_used ? is_captured(driver, last) : false;
    if (captured.ok() && !*captured) {  // Else it stays, as a graph would free it at each replay.
      static_cast<void>(driver.call().free_in_order(address, last));
    }
  };
  return std::shared_ptr<std::byte>(reinterpret_cast<std::byte*>(address), free);  // NOLINT
}

Result<std::shared_ptr<std::byte>> allocate_zeros(const Driver& driver,
                                                  std::size_t bytes,
                                                  StreamHandle* stream) {
  LIGHTCC_ASSIGN_OR_RETURN(auto memory, allocate_in_order(driver, bytes, stream));
  LIGHTCC_RETURN_IF_ERROR(driver.fill(gpu_address(memory.get()), std::uint8_t{0}, bytes, stream));
  return memory;
}

Status keep_freed_memory(const Driver& driver, Device device) {
  int has_pool = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.device_attribute(&has_pool, kMemoryPools, device));
  if (has_pool == 0) {
    return {ErrorCode::kUnimplemented, "the GPU has no memory pool (cuMemAllocAsync)"};
  }
  PoolHandle* pool = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.default_pool(&pool, device));
  constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;
  std::uint64_t bytes = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.pool_attribute(pool, kReleaseThreshold, &bytes));
  bytes = std::max(bytes, kKeptBytes);  // A framework may want more.
  return driver.set_pool_attribute(pool, kReleaseThreshold, &bytes);
}

}  // namespace lightcc::cuda
