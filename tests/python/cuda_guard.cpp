// Makes a CPU build of torch believe in one CUDA device: the device guard and the hooks that
// autograd, factory functions and streams ask for. Built by cuda_torch.py against torch's headers.
//
// Memory is the host's. Stream 0 is the default stream of the (fake) CUDA driver, and every other
// one is a stream that is made there; events are the driver's. Operators run at once. Where results
// may come later, they wait for their stream before (cuda_torch.py).
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace {

thread_local c10::StreamId current = 0;

/// A function of the driver.
template <typename... Arguments>
auto driver(const char* name) {
  static void* const opened = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<int (*)(Arguments...)>(::dlsym(opened, name));
}

void check(int code) {
  TORCH_CHECK(code == 0, "error ", code, " of the CUDA driver");
}

/// Has calls of the driver on this thread go to its GPU.
class Context {
 public:
  Context() {
    static void* const gpu = [] {
      void* retained = nullptr;
      check(driver<unsigned>("cuInit")(0));
      check(driver<void**, int>("cuDevicePrimaryCtxRetain")(&retained, 0));
      return retained;
    }();
    driver<void*>("cuCtxPushCurrent_v2")(gpu);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    void* popped = nullptr;
    driver<void**>("cuCtxPopCurrent_v2")(&popped);
  }
};

void* native_stream(c10::StreamId id) {
  if (id == 0) {
    return nullptr;
  }
  static std::mutex mutex;
  static std::map<c10::StreamId, void*> made;
  const std::lock_guard lock(mutex);
  void*& stream = made[id];
  if (stream == nullptr) {
    const Context context;
    check(driver<void**, unsigned, int>("cuStreamCreateWithPriority")(&stream, 1, 0));
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
    static std::atomic<c10::StreamId> next{0};
    return stream(8 + next++ % 32);  // From a pool, as on a GPU.
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
  void synchronizeStream(const c10::Stream& chosen) const override {
    const Context context;
    driver<void*>("cuStreamSynchronize")(native_stream(chosen.id()));
  }
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event,
              const c10::Stream& chosen,
              c10::DeviceIndex,
              c10::EventFlag) const override {
    const Context context;
    if (*event == nullptr) {
      check(driver<void**, unsigned>("cuEventCreate")(event, 2));
    }
    driver<void*, void*>("cuEventRecord")(*event, native_stream(chosen.id()));
  }
  void block(void* event, const c10::Stream& chosen) const override {
    const Context context;
    driver<void*, void*, unsigned>("cuStreamWaitEvent")(native_stream(chosen.id()), event, 0);
  }
  bool queryEvent(void* event) const override {
    const Context context;
    return driver<void*>("cuEventQuery")(event) == 0;
  }
  void synchronizeEvent(void* event) const override {
    while (!queryEvent(event)) {
      ::usleep(100);
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    driver<void*>("cuEventDestroy_v2")(event);
  }
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

/// Waits for what the current stream of this thread has been given.
extern "C" void cuda_guard_wait() {
  guard.synchronizeStream(Guard::stream(current));
}

/// The driver's handle of a stream, for tests that give it work.
extern "C" void* cuda_guard_stream(std::int64_t id) {
  return native_stream(id);
}
