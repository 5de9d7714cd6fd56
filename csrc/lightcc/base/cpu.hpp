// What the CPU and the operating system together let this process execute.
//
// An instruction set counts only if the operating system saves its registers: CPUID says what the
// CPU has, XCR0 what is saved. On other architectures than x86-64 nothing is detected and the plain
// code runs.
#pragma once

#include <cstdint>

namespace lightcc {

struct CpuFeatures {
  bool avx2 = false;    ///< AVX2, FMA and F16C.
  bool avx512 = false;  ///< `avx2`, and AVX-512 F, BW, DQ and VL.
  bool sha = false;     ///< SHA, SSSE3 and SSE4.1, whose registers are always saved.
};

/// The registers from which CpuFeatures are derived.
struct CpuidLeaves {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint64_t xcr0 = 0;  ///< Zero if the operating system does not use XSAVE.
};

/// The rule alone.
CpuFeatures interpret_cpuid(const CpuidLeaves& leaves);

/// This machine. Constant for the life of the process; CPUID can be slow under a hypervisor, so
/// keep the answer.
CpuFeatures detect_cpu_features();

}  // namespace lightcc
