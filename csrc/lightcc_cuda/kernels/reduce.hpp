// Arguments of the kernels of reduce.cu.
#pragma once

#include "lightcc_cuda/kernels/integers.hpp"

namespace lightcc::cuda {

inline constexpr u32 kMaxReduceSources = 64;

/// out = postscale * (x_0 op x_1 op ...), in the order of the sources, any alignment. `out` may be
/// one of them, exactly.
struct ReduceArguments {
  const u8* sources[kMaxReduceSources];  ///< Null: zeros.
  u64 prescaled;                         ///< Bit k: x_k = prescale * source k.
  u8* out;
  u64 count;  ///< Elements.
  double prescale;
  double postscale;
  u32 num_sources;  ///< At least one.
  u32 op;           ///< ReduceOp: kSum, kMin, kMax or kProduct.
};
static_assert(sizeof(ReduceArguments) == 560);

inline constexpr u32 kReduceThreads = 256;

}  // namespace lightcc::cuda

/// Every kernel of reduce.cu: X(name, type).
#define LIGHTCC_REDUCE_KERNELS(X)     \
  X(lightcc_reduce_u8, Integer<u8>)   \
  X(lightcc_reduce_i8, Integer<i8>)   \
  X(lightcc_reduce_u16, Integer<u16>) \
  X(lightcc_reduce_i16, Integer<i16>) \
  X(lightcc_reduce_i32, Integer<i32>) \
  X(lightcc_reduce_i64, Integer<i64>) \
  X(lightcc_reduce_f16, Float16)      \
  X(lightcc_reduce_f32, Float32)      \
  X(lightcc_reduce_f64, Float64)      \
  X(lightcc_reduce_bool, Bool)        \
  X(lightcc_reduce_bf16, Bfloat16)
