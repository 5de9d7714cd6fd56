// CPU detection, see cpu.hpp. Bit numbers: Intel SDM volume 2, CPUID; volume 1, chapter 13 (XCR0).
#include "lightcc/base/cpu.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lightcc {
namespace {

constexpr std::uint32_t bit(unsigned number) {
  return std::uint32_t{1} << number;
}

constexpr std::uint32_t kLeaf1EcxSsse3 = bit(9);
constexpr std::uint32_t kLeaf1EcxFma = bit(12);
constexpr std::uint32_t kLeaf1EcxSse41 = bit(19);
constexpr std::uint32_t kLeaf1EcxOsxsave = bit(27);
constexpr std::uint32_t kLeaf1EcxAvx = bit(28);
constexpr std::uint32_t kLeaf1EcxF16c = bit(29);
constexpr std::uint32_t kLeaf7EbxAvx2 = bit(5);
constexpr std::uint32_t kLeaf7EbxAvx512f = bit(16);
constexpr std::uint32_t kLeaf7EbxAvx512dq = bit(17);
constexpr std::uint32_t kLeaf7EbxSha = bit(29);
constexpr std::uint32_t kLeaf7EbxAvx512bw = bit(30);
constexpr std::uint32_t kLeaf7EbxAvx512vl = bit(31);
constexpr std::uint64_t kXcr0Ymm = bit(1) | bit(2);  // XMM and upper YMM halves.
constexpr std::uint64_t kXcr0Zmm =
    kXcr0Ymm | bit(5) | bit(6) | bit(7);  // Masks, upper ZMM halves, ZMM16-31.

constexpr bool has_all(std::uint64_t value, std::uint64_t wanted) {
  return (value & wanted) == wanted;
}

}  // namespace

CpuFeatures interpret_cpuid(const CpuidLeaves& leaves) {
  CpuFeatures features;
  features.avx2 =
      has_all(leaves.leaf1_ecx, kLeaf1EcxFma | kLeaf1EcxOsxsave | kLeaf1EcxAvx | kLeaf1EcxF16c) &&
      has_all(leaves.leaf7_ebx, kLeaf7EbxAvx2) && has_all(leaves.xcr0, kXcr0Ymm);
  features.avx512 =
      features.avx2 &&
      has_all(leaves.leaf7_ebx,
              kLeaf7EbxAvx512f | kLeaf7EbxAvx512dq | kLeaf7EbxAvx512bw | kLeaf7EbxAvx512vl) &&
      has_all(leaves.xcr0, kXcr0Zmm);
  features.sha = has_all(leaves.leaf1_ecx, kLeaf1EcxSsse3 | kLeaf1EcxSse41) &&
                 has_all(leaves.leaf7_ebx, kLeaf7EbxSha);
  return features;
}

CpuFeatures detect_cpu_features() {
  CpuidLeaves leaves;
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
    leaves.leaf1_ecx = ecx;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    leaves.leaf7_ebx = ebx;
  }
  if ((leaves.leaf1_ecx & kLeaf1EcxOsxsave) != 0) {
    // By hand: the intrinsic would need -mxsave for this whole file.
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    leaves.xcr0 = (std::uint64_t{high} << 32) | low;
  }
#endif
  return interpret_cpuid(leaves);
}

}  // namespace lightcc
