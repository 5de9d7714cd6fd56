// Arguments of the kernels of bucket.cu.
#pragma once

#include "lightcc_cuda/kernels/integers.hpp"

namespace lightcc::cuda {

/// A tensor of a bucket: where it lies, and the bucket's element that its first one is. It ends
/// where the next one begins.
struct BucketRow {
  u8* tensor;
  u64 first;
};

/// What every driver takes as the arguments of a launch.
inline constexpr u32 kMaxArgumentBytes = 4096;
inline constexpr u32 kMaxBucketRows = 254;

/// Many tensors and one bucket, any alignment. A bucket whose tensors begin at multiples of 16
/// bytes travels fastest.
struct BucketArguments {
  BucketRow rows[kMaxBucketRows];
  u8* bucket;
  u64 total;      ///< Elements of the bucket.
  double factor;  ///< In float32 for float16, bfloat16 and float32.
  u32 count;      ///< Rows, at least one; the first begins at 0.
  u32 unpacks;    ///< 0: from the tensors into the bucket; 1: from the bucket into the tensors.
};
static_assert(sizeof(BucketArguments) == kMaxArgumentBytes);

inline constexpr u32 kBucketThreads = 256;
/// Elements that a block takes at a time.
inline constexpr u64 kBucketTile = 4096;

}  // namespace lightcc::cuda

/// Every kernel of bucket.cu: X(name, type it reads, type it writes).
#define LIGHTCC_COPY_KERNELS(X) \
  X(lightcc_copy_1, u8)         \
  X(lightcc_copy_2, u16)        \
  X(lightcc_copy_4, u32)        \
  X(lightcc_copy_8, u64)

#define LIGHTCC_CONVERT_KERNELS(X)                       \
  X(lightcc_convert_f32_f32, Float32, Float32)           \
  X(lightcc_convert_f32_f16, Float32, Float16)           \
  X(lightcc_convert_f32_bf16, Float32, Bfloat16)         \
  X(lightcc_convert_f16_f32, Float16, Float32)           \
  X(lightcc_convert_f16_f16, Float16, Float16)           \
  X(lightcc_convert_f16_bf16, Float16, Bfloat16)         \
  X(lightcc_convert_bf16_f32, Bfloat16, Float32)         \
  X(lightcc_convert_bf16_f16, Bfloat16, Float16)         \
  X(lightcc_convert_bf16_bf16, Bfloat16, Bfloat16)       \
  X(lightcc_convert_f64_f64, Float64, Float64)           \
  X(lightcc_convert_u8_u8, Integer<u8>, Integer<u8>)     \
  X(lightcc_convert_i8_i8, Integer<i8>, Integer<i8>)     \
  X(lightcc_convert_u16_u16, Integer<u16>, Integer<u16>) \
  X(lightcc_convert_i16_i16, Integer<i16>, Integer<i16>) \
  X(lightcc_convert_i32_i32, Integer<i32>, Integer<i32>) \
  X(lightcc_convert_i64_i64, Integer<i64>, Integer<i64>)
/// X(name, ...) for all of them.
#define LIGHTCC_ALL_BUCKET_KERNELS(X) \
  LIGHTCC_COPY_KERNELS(X)             \
  LIGHTCC_CONVERT_KERNELS(X)
