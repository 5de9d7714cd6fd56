// Arguments of the kernels of bucket.cu.
#pragma once

#include "lightcc_cuda/kernels/indices.hpp"

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
  u64 total;    ///< Elements of the bucket.
  u32 count;    ///< Rows, at least one; the first begins at 0.
  u32 unpacks;  ///< 0: from the tensors into the bucket; 1: from the bucket into the tensors.
};
static_assert(sizeof(BucketArguments) <= kMaxArgumentBytes);

inline constexpr u32 kBucketThreads = 256;
/// Elements that a block takes at a time.
inline constexpr u64 kBucketTile = 4096;

}  // namespace lightcc::cuda

/// Every kernel of bucket.cu: X(name, type of its elements).
#define LIGHTCC_COPY_KERNELS(X) \
  X(lightcc_copy_1, u8)         \
  X(lightcc_copy_2, u16)        \
  X(lightcc_copy_4, u32)
