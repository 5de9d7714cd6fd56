// Integers by their bits, the same in kernels and in what launches them.
#pragma once

namespace lightcc::cuda {

using u8 = __UINT8_TYPE__;
using u16 = __UINT16_TYPE__;
using u32 = __UINT32_TYPE__;
using u64 = __UINT64_TYPE__;
using i16 = __INT16_TYPE__;
static_assert(sizeof(void*) == 8 && sizeof(u64) == 8 && sizeof(u32) == 4);

inline constexpr u32 kWarpLanes = 32;

}  // namespace lightcc::cuda

/// X(kernel_f32, ..., type) for each type of elements, and of lanes (elements.hpp).
#define LIGHTCC_OF_ELEMENTS(X, kernel, function) \
  X(kernel##_f32, function, Float32)             \
  X(kernel##_f64, function, Float64)             \
  X(kernel##_f16, function, Float16)             \
  X(kernel##_bf16, function, Bfloat16)
#define LIGHTCC_OF_LANES(X, kernel, function) \
  X(kernel##_f32, function, float)            \
  X(kernel##_f64, function, double)
