// The processor's time-stamp counter, and what it counts.
//
// It ticks at a rate of its own, which is measured against the steady clock, whatever the core
// does. How many cycles the core makes in a tick changes with its clock, and is measured again and
// again, by a chain of instructions of which each takes one cycle. On processors other than x86-64
// a tick is a nanosecond of the steady clock.
#pragma once

#include <cstdint>

#ifdef __x86_64__
#include <immintrin.h>
#else
#include <chrono>
#endif

namespace harp_cycles {

/// Nothing that comes before or after it in the program overtakes it.
inline std::uint64_t ticks() {
#ifdef __x86_64__
  _mm_lfence();
  const std::uint64_t now = __rdtsc();
  _mm_lfence();
  return now;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

struct Clock {
  double ticks_per_ns = 1;
  double ticks_per_read = 0;  ///< What two calls of ticks() are apart at least.
};

/// Blocks for some 30 ms.
Clock measure_clock();

/// Of the core that this thread runs on, now. Blocks for some 50 us.
double cycles_per_tick();

}  // namespace harp_cycles
