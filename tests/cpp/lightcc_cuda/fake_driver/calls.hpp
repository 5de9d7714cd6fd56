// What all functions of the fake driver are written with.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lightcc_cuda/driver/functions.hpp"
#include "lightcc_cuda/fake_driver/state.hpp"

namespace lightcc::cuda::fake {

inline constexpr Code kInvalidValue = kErrorInvalidValue;
inline constexpr Code kOutOfMemory = 2;
inline constexpr Code kInvalidDevice = 101;
inline constexpr Code kInvalidContext = kErrorInvalidContext;
inline constexpr Code kNoBinary = 209;
inline constexpr Code kInvalidHandle = 400;
inline constexpr Code kCaptureIsolation = 905;
inline constexpr Code kLaunchFailed = 719;
inline constexpr Code kForbiddenInCapture = 900;
inline constexpr int kHighestPriority = -5;

inline std::atomic<int> live_objects{0};
inline std::atomic<int> spoiled_captures{0};
inline thread_local Option capture_mode = 0;  // "Global", as threads begin.
/// This thread has them; the last one is current.
inline thread_local std::vector<ContextHandle*> contexts;

/// The stream of a handle; those up to 2 are the default one's. Like contexts, that is not counted.
inline Stream& stream_of(StreamHandle* handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) {
    return handle->stream;
  }
  static auto* const kDefault = new Stream(static_cast<unsigned>(settings().number("delay_us")));
  return *kDefault;
}

/// Where the bytes of device memory are; null: it is none.
inline std::byte* find_device_memory(Address address) {
  std::byte* const memory = device_memories().find(address);
  const bool unified = memory == nullptr && settings().number("unified") != 0;
  return unified ? reinterpret_cast<std::byte*>(address) : memory;
}

/// Memory is freed too early.
inline void break_by_memory() {
  (void)std::fprintf(stderr, "fake driver: memory is used that was or is freed\n");
  settings().break_down(kLaunchFailed);
}

/// Adds an operation, which runs unless the GPU is broken by then: what was freed before it came
/// breaks it.
inline void enqueue(StreamHandle* stream,
                    std::function<void()> operation,
                    const std::vector<Address>& used = {}) {
  std::vector<std::shared_ptr<std::byte>> parts = device_memories().parts_of(used);
  if (std::ranges::find(parts, nullptr) != parts.end()) {
    break_by_memory();
  }
  stream_of(stream).add([operation = std::move(operation), parts = std::move(parts)] {
    if (!settings().is_broken()) {
      operation();
    }
  });
}

}  // namespace lightcc::cuda::fake

// Each is what the library takes it for.
#define LIGHTCC_DECLARE(member, symbol, arguments) \
  extern "C" std::remove_pointer_t<decltype(lightcc::cuda::Functions::member)> symbol;
LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_DECLARE)
LIGHTCC_CUDA_LATER_FUNCTIONS(LIGHTCC_DECLARE)
#undef LIGHTCC_DECLARE

#define LIGHTCC_API extern "C" [[gnu::visibility("default")]] lightcc::cuda::Code
/// Where a call may be made to fail.
#define LIGHTCC_MAY_FAIL(name)                                                              \
  if (const lightcc::cuda::Code failure = lightcc::cuda::fake::settings().failure_of(name); \
      failure) {                                                                            \
    return failure;                                                                         \
  }
/// A function that dlsym() finds only where the fake has it: dlsym() calls the resolver each time.
#define LIGHTCC_MAY_LACK(symbol, function)                                       \
  extern "C" decltype(&(function)) resolve_##symbol() {                          \
    return lightcc::cuda::fake::settings().has(#symbol) ? &(function) : nullptr; \
  }                                                                              \
  extern "C"                                                                     \
      [[gnu::visibility("default"), gnu::ifunc("resolve_" #symbol)]] decltype(function) symbol;
#define LIGHTCC_NEEDS_CONTEXT(name)              \
  LIGHTCC_MAY_FAIL(name)                         \
  lightcc::cuda::fake::traffic().count_call();   \
  if (lightcc::cuda::fake::contexts.empty()) {   \
    return lightcc::cuda::fake::kInvalidContext; \
  }

/// For a call that stream capture on another thread forbids.
#define LIGHTCC_SPOILS_CAPTURE                                \
  if (lightcc::cuda::fake::settings().number("graph") != 0 && \
      lightcc::cuda::fake::capture_mode == 0) {               \
    ++lightcc::cuda::fake::spoiled_captures;                  \
    return lightcc::cuda::fake::kForbiddenInCapture;          \
  }
