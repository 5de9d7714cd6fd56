// The driver's functions. What they are made of has headers of its own: state, kernels, memory,
// streams, settings, traffic.
#include "lightcc_cuda/fake_driver/fake_driver.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lightcc_cuda/driver/functions.hpp"
#include "lightcc_cuda/fake_driver/kernels.hpp"
#include "lightcc_cuda/fake_driver/memory.hpp"
#include "lightcc_cuda/fake_driver/state.hpp"
#include "lightcc_cuda/simulator/simulator.hpp"

namespace lightcc::cuda::fake {
namespace {

constexpr Code kInvalidValue = kErrorInvalidValue;
constexpr Code kOutOfMemory = 2;
constexpr Code kInvalidDevice = 101;
constexpr Code kInvalidContext = kErrorInvalidContext;
constexpr Code kNoBinary = 209;
constexpr Code kInvalidHandle = 400;
constexpr Code kCaptureIsolation = 905;
constexpr Code kLaunchFailed = 719;
constexpr Code kForbiddenInCapture = 900;
constexpr int kHighestPriority = -5;

std::atomic<int> live_objects{0};
std::atomic<int> spoiled_captures{0};
thread_local Option capture_mode = 0;  // "Global", as threads begin.
thread_local std::vector<ContextHandle*> contexts;
std::array<std::atomic<int>, 8> retained_contexts{};

/// The stream of a handle; those up to 2 are the default one's. Like contexts, that is not counted.
fake::Stream& stream_of(StreamHandle* handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) {
    return handle->stream;
  }
  static auto* const kDefault =
      new fake::Stream(static_cast<unsigned>(settings().number("delay_us")));
  return *kDefault;
}

/// Where the bytes of device memory are; null: it is none.
std::byte* find_device_memory(Address address) {
  std::byte* const memory = device_memories().find(address);
  const bool unified = memory == nullptr && settings().number("unified") != 0;
  return unified ? reinterpret_cast<std::byte*>(address) : memory;
}

/// Adds an operation, which runs unless the GPU is broken by then.
void enqueue(StreamHandle* stream, std::function<void()> operation) {
  stream_of(stream).add([operation = std::move(operation)] {
    if (!settings().is_broken()) {
      operation();
    }
  });
}

/// Copies in the stream's order; waits where the host's memory is not pinned.
void enqueue_copy(
    StreamHandle* stream, std::byte* to, const std::byte* from, std::size_t bytes, bool pinned) {
  enqueue(stream, [=] {
    const std::shared_lock use(memory_in_use());
    std::memcpy(to, from, bytes);
  });
  if (!pinned) {
    stream_of(stream).add_turn()->wait();
  }
}

/// Makes a copy to the host wait for other settings, if these say so.
void hold_copy(StreamHandle* stream, Device device, int turn) {
  if (settings().holds(device, turn)) {
    enqueue(stream, [current = settings().current()] {
      while (settings().current() == current) {
        ::usleep(100);
      }
    });
  }
}

}  // namespace

[[gnu::visibility("default")]] void set(const std::string& text) {
  settings().set(text);
  traffic().forget();
  pinned_memories().begin_growth();
}
[[gnu::visibility("default")]] Copies copies_of(int device) {
  return traffic().of(device);
}
[[gnu::visibility("default")]] int launches() {
  return traffic().launches();
}
[[gnu::visibility("default")]] int modules_loaded() {
  return traffic().modules();
}
[[gnu::visibility("default")]] int timed_events() {
  return traffic().timed_events();
}
[[gnu::visibility("default")]] std::map<int, int> streams_by_priority() {
  return traffic().streams();
}
[[gnu::visibility("default")]] std::size_t pinned_growth() {
  return pinned_memories().growth();
}
[[gnu::visibility("default")]] int spoiled_captures_of_graphs() {
  return spoiled_captures;
}
[[gnu::visibility("default")]] int live() {
  return live_objects;
}
[[gnu::visibility("default")]] void lightcc_fake_cuda_set(const char* settings) {
  set(settings);
}
[[gnu::visibility("default")]] int lightcc_fake_cuda_live() {
  return live_objects;
}
[[gnu::visibility("default")]] int lightcc_fake_cuda_copies_to_host(int device) {
  return traffic().of(device).to_host;
}
[[gnu::visibility("default")]] void lightcc_fake_cuda_enqueue(StreamHandle* stream,
                                                              void (*operation)(void*),
                                                              void* argument,
                                                              void (*give_back)(void*)) {
  enqueue(stream, [operation, owned = std::shared_ptr<void>(argument, give_back)] {
    operation(owned.get());
  });
}
[[gnu::visibility("default")]] void* lightcc_fake_cuda_memory(Address address) {
  return find_device_memory(address);
}

}  // namespace lightcc::cuda::fake

namespace cuda = lightcc::cuda;
namespace fake = lightcc::cuda::fake;
using cuda::Address;
using cuda::Code;
using cuda::Device;
using cuda::Option;
using fake::settings;

#define LIGHTCC_API extern "C" [[gnu::visibility("default")]] Code
/// Where a call may be made to fail.
#define LIGHTCC_MAY_FAIL(name)                                     \
  if (const Code failure = settings().failure_of(name); failure) { \
    return failure;                                                \
  }
/// A function that dlsym() finds only where the fake has it: dlsym() calls the resolver each time.
#define LIGHTCC_MAY_LACK(symbol, function)                  \
  extern "C" decltype(&(function)) resolve_##symbol() {     \
    return settings().has(#symbol) ? &(function) : nullptr; \
  }                                                         \
  extern "C"                                                \
      [[gnu::visibility("default"), gnu::ifunc("resolve_" #symbol)]] decltype(function) symbol;
#define LIGHTCC_NEEDS_CONTEXT(name) \
  LIGHTCC_MAY_FAIL(name)            \
  if (fake::contexts.empty()) {     \
    return fake::kInvalidContext;   \
  }

/// For a call that stream capture on another thread forbids.
#define LIGHTCC_SPOILS_CAPTURE                                      \
  if (settings().number("graph") != 0 && fake::capture_mode == 0) { \
    ++fake::spoiled_captures;                                       \
    return fake::kForbiddenInCapture;                               \
  }

LIGHTCC_API cuInit(unsigned /*flags*/) {
  return settings().number("init");
}
LIGHTCC_API cuDriverGetVersion(int* version) {
  *version = settings().number("version");
  return cuda::kSuccess;
}
LIGHTCC_API cuGetErrorName(Code code, const char** name) {
  static const std::map<Code, const char*> kNames{{1, "CUDA_ERROR_INVALID_VALUE"},
                                                  {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                  {100, "CUDA_ERROR_NO_DEVICE"},
                                                  {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
                                                  {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                  {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                  {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                                                  {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}};
  const auto found = kNames.find(code);
  *name = found == kNames.end() ? nullptr : found->second;
  return found == kNames.end() ? fake::kInvalidValue : cuda::kSuccess;
}
LIGHTCC_API cuGetErrorString(Code /*code*/, const char** text) {
  *text = "of the fake driver";
  return cuda::kSuccess;
}

LIGHTCC_API cuDeviceGetCount(int* count) {
  LIGHTCC_MAY_FAIL("cuDeviceGetCount")
  *count = settings().number("devices");
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGet(Device* device, int index) {
  LIGHTCC_MAY_FAIL("cuDeviceGet")
  *device = index;
  return index >= 0 && index < settings().number("devices") ? cuda::kSuccess : fake::kInvalidDevice;
}
LIGHTCC_API cuDeviceGetName(char* name, int bytes, Device /*device*/) {
  const char* const shown =
      settings().number("mig") != 0 ? "Simulated GPU MIG 1g.5gb" : "Simulated GPU";
  (void)std::snprintf(name, static_cast<std::size_t>(bytes), "%s", shown);
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGetAttribute(int* value, Option attribute, Device /*device*/) {
  const int capability = settings().number("capability");
  *value = attribute == cuda::kMajorOfCapability   ? capability / 10
           : attribute == cuda::kMinorOfCapability ? capability % 10
                                                   : 2;
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceTotalMem_v2(std::size_t* bytes, Device /*device*/) {
  *bytes = fake::memory_bytes();
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGetPCIBusId(char* id, int bytes, Device device) {
  // Slices are of one GPU.
  const int bus = settings().number("bus") + (settings().number("mig") != 0 ? 0 : device);
  (void)std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0", bus);
  return cuda::kSuccess;
}
static Code device_uuid(cuda::Uuid* uuid, Device device) {
  LIGHTCC_MAY_FAIL("cuDeviceGetUuid_v2")
  uuid->bytes = {'\x1f', '\xff'};
  uuid->bytes[14] = static_cast<char>(settings().number("bus"));
  uuid->bytes[15] = static_cast<char>(device);
  return cuda::kSuccess;
}
LIGHTCC_MAY_LACK(cuDeviceGetUuid_v2, device_uuid)
LIGHTCC_API cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  LIGHTCC_MAY_FAIL("cuDeviceCanAccessPeer")
  if (device == peer) {
    return fake::kInvalidDevice;
  }
  // As on a host with two sockets: in pairs.
  *can = settings().number("mig") == 0 && device / 2 == peer / 2 ? 1 : 0;
  return cuda::kSuccess;
}

LIGHTCC_API cuDevicePrimaryCtxRetain(cuda::ContextHandle** context, Device device) {
  LIGHTCC_MAY_FAIL("cuDevicePrimaryCtxRetain")
  static cuda::ContextHandle all[] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  *context = &all[device];
  ++fake::live_objects;
  ++fake::retained_contexts.at(static_cast<std::size_t>(device));
  return cuda::kSuccess;
}
LIGHTCC_API cuDevicePrimaryCtxRelease_v2(Device device) {
  --fake::live_objects;
  --fake::retained_contexts.at(static_cast<std::size_t>(device));
  return cuda::kSuccess;
}
LIGHTCC_API cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* is_active) {
  LIGHTCC_MAY_FAIL("cuDevicePrimaryCtxGetState")
  *flags = 0;
  *is_active = fake::retained_contexts.at(static_cast<std::size_t>(device)) > 0 ? 1 : 0;
  return cuda::kSuccess;
}
LIGHTCC_API cuCtxPushCurrent_v2(cuda::ContextHandle* context) {
  LIGHTCC_MAY_FAIL("cuCtxPushCurrent_v2")
  fake::contexts.push_back(context);
  return cuda::kSuccess;
}
LIGHTCC_API cuCtxGetDevice(Device* device) {
  LIGHTCC_NEEDS_CONTEXT("cuCtxGetDevice")
  *device = fake::contexts.back()->device;
  return cuda::kSuccess;
}
LIGHTCC_API cuCtxPopCurrent_v2(cuda::ContextHandle** context) {
  if (fake::contexts.empty()) {
    return fake::kInvalidContext;
  }
  *context = fake::contexts.back();
  fake::contexts.pop_back();
  return cuda::kSuccess;
}

LIGHTCC_API cuMemAlloc_v2(Address* address, std::size_t bytes) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuMemAlloc_v2")
  if (bytes == 0) {
    return fake::kInvalidValue;
  }
  if (fake::device_memories().bytes() + bytes > fake::memory_bytes()) {
    return fake::kOutOfMemory;
  }
  *address = fake::device_memories().allocate(
      bytes, fake::contexts.back()->device, settings().number("unified") != 0);
  if (*address == 0) {
    return fake::kOutOfMemory;
  }
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemFree_v2(Address address) {
  LIGHTCC_SPOILS_CAPTURE
  if (!fake::device_memories().free(address)) {
    return fake::kInvalidValue;
  }
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuMemHostAlloc")
  *memory = fake::pinned_memories().allocate(bytes);
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemFreeHost(void* memory) {
  LIGHTCC_SPOILS_CAPTURE
  if (!fake::pinned_memories().free(memory)) {
    return fake::kInvalidValue;
  }
  --fake::live_objects;
  return cuda::kSuccess;
}
// Any context will do.
LIGHTCC_API cuPointerGetAttribute(void* value, Option attribute, Address address) {
  LIGHTCC_NEEDS_CONTEXT("cuPointerGetAttribute")
  std::optional<Device> device = fake::device_memories().device_of(address);
  if (!device.has_value() && settings().number("unified") != 0) {
    device = 0;
  }
  if (!device.has_value()) {
    return fake::kInvalidValue;
  }
  if (attribute == cuda::kMemoryKindOfAddress) {
    *static_cast<unsigned*>(value) = cuda::kMemoryOfDevice;
  } else {
    *static_cast<int*>(value) = *device;
  }
  return cuda::kSuccess;
}
LIGHTCC_API cuMemcpyDtoHAsync_v2(void* to,
                                 Address from,
                                 std::size_t bytes,
                                 cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemcpyDtoHAsync_v2")
  const std::byte* const memory = fake::find_device_memory(from);
  if (memory == nullptr) {
    return fake::kInvalidValue;
  }
  const Device device = fake::device_memories().device_of(from).value_or(0);
  fake::hold_copy(stream, device, fake::traffic().count_to_host(device, bytes));
  const bool pinned = fake::pinned_memories().has(to, bytes);
  fake::enqueue_copy(stream, static_cast<std::byte*>(to), memory, bytes, pinned);
  return cuda::kSuccess;
}
LIGHTCC_API cuMemcpyDtoDAsync_v2(Address to,
                                 Address from,
                                 std::size_t bytes,
                                 cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemcpyDtoDAsync_v2")
  std::byte* const target = fake::find_device_memory(to);
  const std::byte* const source = fake::find_device_memory(from);
  if (target == nullptr || source == nullptr) {
    return fake::kInvalidValue;
  }
  fake::enqueue_copy(stream, target, source, bytes, true);
  return cuda::kSuccess;
}
LIGHTCC_API cuMemsetD8Async(Address to,
                            unsigned char value,
                            std::size_t bytes,
                            cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemsetD8Async")
  std::byte* const memory = fake::find_device_memory(to);
  if (memory == nullptr) {
    return fake::kInvalidValue;
  }
  fake::enqueue(stream, [=] {
    const std::shared_lock use(fake::memory_in_use());
    std::memset(memory, value, bytes);
  });
  return cuda::kSuccess;
}
LIGHTCC_API cuMemcpyHtoDAsync_v2(Address to,
                                 const void* from,
                                 std::size_t bytes,
                                 cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemcpyHtoDAsync_v2")
  std::byte* const memory = fake::find_device_memory(to);
  if (memory == nullptr) {
    return fake::kInvalidValue;
  }
  fake::traffic().count_to_device(fake::device_memories().device_of(to).value_or(0), bytes);
  const bool pinned = fake::pinned_memories().has(from, bytes);
  fake::enqueue_copy(stream, memory, static_cast<const std::byte*>(from), bytes, pinned);
  return cuda::kSuccess;
}

LIGHTCC_API cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  LIGHTCC_NEEDS_CONTEXT("cuCtxGetStreamPriorityRange")
  *lowest = 0;
  *highest = fake::kHighestPriority;
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamCreateWithPriority(cuda::StreamHandle** stream, unsigned flags, int priority) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamCreateWithPriority")
  if (flags > cuda::kStreamNonBlocking) {
    return fake::kInvalidValue;
  }
  fake::traffic().count_stream(priority);
  *stream =
      new cuda::StreamHandle{fake::Stream(static_cast<unsigned>(settings().number("delay_us")))};
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamIsCapturing(cuda::StreamHandle* /*stream*/, int* status) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamIsCapturing")
  *status = settings().number("capturing");
  return cuda::kSuccess;
}
LIGHTCC_API cuThreadExchangeStreamCaptureMode(Option* mode) {
  LIGHTCC_NEEDS_CONTEXT("cuThreadExchangeStreamCaptureMode")
  std::swap(*mode, fake::capture_mode);
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamDestroy_v2(cuda::StreamHandle* stream) {
  delete stream;
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamSynchronize(cuda::StreamHandle* stream) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuStreamSynchronize")
  fake::stream_of(stream).add_turn()->wait();
  return settings().failure_of("");
}

LIGHTCC_API cuEventCreate(cuda::EventHandle** event, unsigned flags) {
  LIGHTCC_NEEDS_CONTEXT("cuEventCreate")
  if ((flags & cuda::kEventWithoutTiming) == 0) {
    fake::traffic().count_timed_event();
  }
  *event = new cuda::EventHandle{.flags = flags, .turn = nullptr};
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuEventDestroy_v2(cuda::EventHandle* event) {
  delete event;
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuEventRecord(cuda::EventHandle* event, cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuEventRecord")
  event->turn = fake::stream_of(stream).add_turn();
  return cuda::kSuccess;
}
LIGHTCC_API cuEventQuery(cuda::EventHandle* event) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuEventQuery")
  return event->turn == nullptr || event->turn->is_done() ? cuda::kSuccess : cuda::kErrorNotReady;
}
// Of what is recorded by now.
LIGHTCC_API cuStreamWaitEvent(cuda::StreamHandle* stream,
                              cuda::EventHandle* event,
                              unsigned flags) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamWaitEvent")
  if (flags != 0) {
    return fake::kInvalidValue;
  }
  if (settings().number("capturing") != 0) {
    ++fake::spoiled_captures;  // The event was recorded outside of the capture.
    return fake::kCaptureIsolation;
  }
  if (event->turn != nullptr) {
    fake::stream_of(stream).add([turn = event->turn] { turn->wait(); });
  }
  return cuda::kSuccess;
}
LIGHTCC_API cuEventElapsedTime(float* milliseconds,
                               cuda::EventHandle* first,
                               cuda::EventHandle* last) {
  LIGHTCC_NEEDS_CONTEXT("cuEventElapsedTime")
  for (const cuda::EventHandle* const event : {first, last}) {
    if (event->flags == cuda::kEventWithoutTiming || event->turn == nullptr) {
      return fake::kInvalidHandle;
    }
    if (!event->turn->is_done()) {
      return cuda::kErrorNotReady;
    }
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(last->turn->finished() - first->turn->finished())
          .count();
  return cuda::kSuccess;
}

LIGHTCC_API cuModuleLoadDataEx(cuda::ModuleHandle** module,
                               const void* image,
                               unsigned options,
                               Option* names,
                               void** values) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuModuleLoadDataEx")
  auto made = std::make_unique<cuda::ModuleHandle>();
  std::string_view text = static_cast<const char*>(image);
  const bool is_cubin = text.starts_with(fake::kCubinMagic);
  if (is_cubin) {
    if (settings().number("cubin") == 0) {
      return fake::kNoBinary;
    }
    text.remove_prefix(fake::kCubinMagic.size());
  }
  if ((!is_cubin && settings().number("ptx") == 0) || !fake::read_module(text, *made)) {
    for (unsigned i = 0; i < options; ++i) {
      if (names[i] == cuda::kJitErrorLog) {
        (void)std::snprintf(static_cast<char*>(values[i]), 64, "ptxas: this is not for me");
      }
    }
    return cuda::kErrorUnsupportedPtx;
  }
  fake::traffic().count_module();
  *module = made.release();
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuModuleUnload(cuda::ModuleHandle* module) {
  delete module;
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuModuleGetFunction(cuda::FunctionHandle** function,
                                cuda::ModuleHandle* module,
                                const char* name) {
  LIGHTCC_NEEDS_CONTEXT("cuModuleGetFunction")
  const auto found = fake::kernels().find(std::string_view(name));
  if (!module->kernels.contains(std::string_view(name)) || found == fake::kernels().end()) {
    return cuda::kErrorNotFound;
  }
  *function = &found->second;
  return cuda::kSuccess;
}
static Code load_function(cuda::FunctionHandle* /*function*/) {
  LIGHTCC_NEEDS_CONTEXT("cuFuncLoad")
  return cuda::kSuccess;
}
LIGHTCC_MAY_LACK(cuFuncLoad, load_function)
LIGHTCC_API cuLaunchKernel(cuda::FunctionHandle* function,
                           unsigned blocks,
                           unsigned blocks_y,
                           unsigned blocks_z,
                           unsigned threads,
                           unsigned threads_y,
                           unsigned threads_z,
                           unsigned /*shared_bytes*/,
                           cuda::StreamHandle* stream,
                           void** parameters,
                           void** /*extra*/) {
  LIGHTCC_NEEDS_CONTEXT("cuLaunchKernel")
  if (function == nullptr || blocks == 0 || threads == 0 || threads > 1024 ||
      blocks_y * blocks_z * threads_y * threads_z != 1) {
    return fake::kInvalidValue;
  }
  fake::traffic().count_launch();
  const auto* const given = static_cast<const std::byte*>(parameters[0]);
  auto arguments = std::make_shared<std::vector<std::byte>>(given, given + function->bytes);
  fake::device_memories().translate(*arguments);
  if (settings().number("wrong") != 0) {
    return cuda::kSuccess;
  }
  fake::enqueue(stream, [=] {
    const std::shared_lock use(fake::memory_in_use());
    const cuda::simulator::Shape shape{.blocks = blocks, .threads = threads};
    if (const std::string wrong = function->run(shape, arguments->data()); !wrong.empty()) {
      (void)std::fprintf(stderr, "fake driver: %s\n", wrong.c_str());
      settings().break_down(fake::kLaunchFailed);
    }
  });
  return cuda::kSuccess;
}

// It is what the library takes it for.
#define LIGHTCC_SAME(member, symbol, arguments) \
  static_assert(std::is_same_v<decltype(&::symbol), decltype(cuda::Functions::member)>);
LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_SAME)
LIGHTCC_CUDA_LATER_FUNCTIONS(LIGHTCC_SAME)
