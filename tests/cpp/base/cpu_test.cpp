#include "lightcc/base/cpu.hpp"

#include <gtest/gtest.h>

namespace lightcc::cpu_test {
namespace {

// What AVX-512 needs.
constexpr CpuidLeaves kAvx512{
    .leaf1_ecx = (1U << 12) | (1U << 27) | (1U << 28) | (1U << 29),
    .leaf7_ebx = (1U << 5) | (1U << 16) | (1U << 17) | (1U << 30) | (1U << 31),
    .xcr0 = 0xe7};
// What the instructions for SHA-256 need.
constexpr CpuidLeaves kSha{.leaf1_ecx = (1U << 9) | (1U << 19), .leaf7_ebx = 1U << 29};

TEST(cpu, a_machine_with_everything_has_everything) {
  const CpuFeatures features = interpret_cpuid({.leaf1_ecx = kAvx512.leaf1_ecx | kSha.leaf1_ecx,
                                                .leaf7_ebx = kAvx512.leaf7_ebx | kSha.leaf7_ebx,
                                                .xcr0 = kAvx512.xcr0});
  EXPECT_TRUE(features.avx2);
  EXPECT_TRUE(features.avx512);
  EXPECT_TRUE(features.sha);
}

TEST(cpu, nothing_known_means_nothing_supported) {
  const CpuFeatures features = interpret_cpuid({});
  EXPECT_FALSE(features.avx2);
  EXPECT_FALSE(features.avx512);
  EXPECT_FALSE(features.sha);
}

TEST(cpu, registers_that_the_system_does_not_save_are_not_used) {
  CpuidLeaves leaves = kAvx512;
  leaves.xcr0 = 0x7;  // No ZMM state.
  EXPECT_TRUE(interpret_cpuid(leaves).avx2);
  EXPECT_FALSE(interpret_cpuid(leaves).avx512);
  leaves.xcr0 = 0x3;  // No YMM state.
  EXPECT_FALSE(interpret_cpuid(leaves).avx2);
  EXPECT_FALSE(interpret_cpuid(leaves).avx512);
}

TEST(cpu, every_bit_is_needed) {
  for (unsigned bit = 0; bit < 32; ++bit) {
    CpuidLeaves leaves = kAvx512;
    leaves.leaf1_ecx &= ~(1U << bit);
    const bool needed = leaves.leaf1_ecx != kAvx512.leaf1_ecx;
    EXPECT_EQ(interpret_cpuid(leaves).avx2, !needed) << bit;
    EXPECT_EQ(interpret_cpuid(leaves).avx512, !needed) << bit;
    leaves = kAvx512;
    leaves.leaf7_ebx &= ~(1U << bit);
    EXPECT_EQ(interpret_cpuid(leaves).avx2, bit != 5) << bit;
    EXPECT_EQ(interpret_cpuid(leaves).avx512, leaves.leaf7_ebx == kAvx512.leaf7_ebx) << bit;
    leaves = kSha;
    leaves.leaf1_ecx &= ~(1U << bit);
    leaves.leaf7_ebx &= ~(1U << bit);
    EXPECT_EQ(interpret_cpuid(leaves).sha, bit != 9 && bit != 19 && bit != 29) << bit;
  }
}

TEST(cpu, detection_agrees_with_the_compiler_where_it_asks_too) {
  const CpuFeatures features = detect_cpu_features();
#if defined(__x86_64__)
  EXPECT_EQ(features.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(features.avx512,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
#else
  EXPECT_FALSE(features.avx2 || features.avx512);
#endif
}

}  // namespace
}  // namespace lightcc::cpu_test
