// Arguments of the kernels of finite.cu.
#pragma once

#include "lightcc_cuda/kernels/integers.hpp"

namespace lightcc::cuda {

struct FiniteArguments {
  const u8* data;
  u64 count;     ///< Elements.
  u64 exponent;  ///< The bits of the type's infinity: its exponent of all ones.
  u32* found;    ///< Becomes 1 where an element is a NaN or an infinity, else stays.
};
static_assert(sizeof(FiniteArguments) == 32);

inline constexpr u32 kFiniteThreads = 256;

}  // namespace lightcc::cuda

/// Every kernel of finite.cu, by the bytes of an element: X(name, bits).
#define LIGHTCC_FINITE_KERNELS(X)   \
  X(lightcc_find_non_finite_2, u16) \
  X(lightcc_find_non_finite_4, u32) \
  X(lightcc_find_non_finite_8, u64)
