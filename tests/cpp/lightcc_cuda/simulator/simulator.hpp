// Runs a kernel on the CPU. Each CUDA thread is a fiber. Fibers switch only where a kernel waits,
// and run in random order, from a seed. Blocks run in random order as well, on several threads of
// the system. So logic that holds only in one order fails in another.
//
// What it finds besides wrong results:
// - A barrier or vote that not all threads reach, and a wait without end: an error, not a hang.
// - Under ThreadSanitizer, races in shared and in global memory. Each fiber is a thread to it, and
//   only sync_block() and the ends of a launch order them.
// - Under AddressSanitizer and UBSan, accesses out of bounds, in shared memory too, and misaligned
//   ones.
//
// simulator.cpp, which switches stacks, is compiled without instrumentation. x86-64 only. It says
// nothing about speed, and nothing about the code that a GPU runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lightcc::cuda::simulator {

struct Shape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 32;  ///< A block has so many; a multiple of 32.
  std::uint64_t seed = 1;
  std::uint32_t system_threads = 2;
  /// The blocks that run, where the kernel's blocks do not depend on one another.
  std::uint32_t first_block = 0;
  std::uint32_t end_block = 0;  ///< 0: all.
};

/// Runs `kernel` and waits. Returns what went wrong, or nothing.
std::string launch(const Shape& shape, void (*kernel)(const void*), const void* arguments);

/// LIGHTCC_KERNEL(...) name(Arguments).
template <typename Arguments>
std::string launch(const Shape& shape, void (*kernel)(Arguments), const Arguments& arguments) {
  struct Call {
    void (*kernel)(Arguments);
    const Arguments* arguments;
  };
  const Call call{kernel, &arguments};
  return launch(
      shape,
      [](const void* of) {
        const auto* made = static_cast<const Call*>(of);
        made->kernel(*made->arguments);
      },
      &call);
}

/// Switches in all launches so far.
std::uint64_t switches();

}  // namespace lightcc::cuda::simulator
