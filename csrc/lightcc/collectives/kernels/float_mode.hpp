// Holds the calling thread to IEEE arithmetic for a scope: round to nearest even, subnormals kept,
// no trap. Frameworks let users switch flush-to-zero on per thread (torch.set_flush_denormal), and
// any thread may run a reduction; replicas must not differ for it.
//
// Costs a register read where the mode is the default one already. The arithmetic must be in a
// function that is not inlined into the scope, since compilers do not order it against the mode.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lightcc {

class IeeeFloatMode {
 public:
  IeeeFloatMode() {
    if ((saved_ & kControlMask) != kDefault) {
      write(kDefault);
    }
  }
  IeeeFloatMode(const IeeeFloatMode&) = delete;
  IeeeFloatMode& operator=(const IeeeFloatMode&) = delete;
  ~IeeeFloatMode() {
    if ((saved_ & kControlMask) != kDefault) {
      write(saved_);
    }
  }

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register kControlMask = 0xffc0;  // All but the sticky exception flags.
  static constexpr Register kDefault = 0x1f80;      // Exceptions masked, nothing else set.
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  // AHP, DN, FZ, rounding mode, FZ16 and the trap enables; the rest is reserved.
  static constexpr Register kControlMask = 0x07c89f00;
  static constexpr Register kDefault = 0;
  static Register read() {
    Register value = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Register value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = std::uint32_t;
  static constexpr Register kControlMask = 0;
  static constexpr Register kDefault = 0;
  static Register read() { return 0; }
  static void write(Register /*value*/) {}
#endif

  Register saved_ = read();
};

}  // namespace lightcc
