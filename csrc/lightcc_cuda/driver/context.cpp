#include "lightcc_cuda/driver/context.hpp"

namespace lightcc::cuda {

Result<Context> Context::retain(const Driver& driver, int index) {
  Device device = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device(&device, index), "cuDeviceGet"));
  ContextHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().retain_context(&handle, device), "cuDevicePrimaryCtxRetain"));
  return Context(driver, device, handle);
}

Context::~Context() {
  if (handle_ != nullptr) {
    static_cast<void>(driver_->call().release_context(device_));
  }
}

CurrentContext::CurrentContext(const Context& context)
    : driver_(context.driver()),
      status_(driver_.check(driver_.call().push_context(context.handle()), "cuCtxPushCurrent")),
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

Result<Stream> Stream::create(const Driver& driver) {
  // The lowest, 0, is what streams of frameworks have. The highest is a negative number.
  int lowest = 0;
  int highest = 0;
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().priority_range(&lowest, &highest), "cuCtxGetStreamPriorityRange"));
  StreamHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().create_stream(&handle, kStreamNonBlocking, highest),
                   "cuStreamCreateWithPriority"));
  return Stream(driver, handle);
}

Stream::~Stream() {
  if (handle_ != nullptr) {
    static_cast<void>(wait());
    static_cast<void>(driver_->call().destroy_stream(handle_));
  }
}

Status Stream::wait() const {
  return driver_->check(driver_->call().wait_for_stream(handle_), "cuStreamSynchronize");
}

Result<DeviceMemory> allocate_device_memory(const Driver& driver, std::size_t bytes) {
  Address address = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().allocate(&address, bytes), "cuMemAlloc"));
  return DeviceMemory(driver, address);
}

Result<HostMemory> allocate_pinned_memory(const Driver& driver, std::size_t bytes) {
  void* address = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.check(
      driver.call().allocate_host(&address, bytes, kHostMemoryForAllContexts), "cuMemHostAlloc"));
  return HostMemory(driver, address);
}

}  // namespace lightcc::cuda
