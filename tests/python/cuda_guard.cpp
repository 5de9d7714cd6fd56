// Makes a CPU build of torch believe in one CUDA device: the device guard and the hooks that
// autograd, factory functions and streams ask for. Built by cuda_torch.py against torch's headers.
//
// Memory is the host's. Stream 0 is the default stream of the (fake) CUDA driver, and every other
// one is a stream that is made there. Operators run at once, so events are always done.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace {

thread_local c10::StreamId current = 0;

void* native_stream(c10::StreamId id) {
  if (id == 0) {
    return nullptr;
  }
  static std::mutex mutex;
  static std::map<c10::StreamId, void*> made;
  const std::lock_guard lock(mutex);
  void*& stream = made[id];
  if (stream == nullptr) {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    const auto create = reinterpret_cast<int (*)(void**, unsigned, int)>(
        ::dlsym(driver, "cuStreamCreateWithPriority"));
    TORCH_CHECK(create(&stream, 1, 0) == 0, "cuStreamCreateWithPriority");
  }
  return stream;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device device() { return {c10::kCUDA, 0}; }
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device(), id);
  }

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(7); }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> next{8};
    return stream(next++);
  }
  c10::Stream exchangeStream(c10::Stream chosen) const override {
    const c10::StreamId before = current;
    current = chosen.id();
    return stream(before);
  }
  void* getStreamNativeHandle(const c10::Stream chosen) const override {
    return native_stream(chosen.id());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    static std::atomic<std::intptr_t> events{0};
    *event = reinterpret_cast<void*>(++events);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

const Guard guard;
const bool registered = [] {
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCUDA)].store(&guard);
  return true;
}();

// torch looks it up by this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Device getDeviceFromPtr(void*) const override { return Guard::device(); }
};

// DistributedDataParallel measures steps on a GPU by one.
struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<std::int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::Timer)
}

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

/// The driver's handle of a stream, for tests that give it work.
extern "C" void* cuda_guard_stream(std::int64_t id) {
  return native_stream(id);
}
