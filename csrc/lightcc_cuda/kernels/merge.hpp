// Arguments of the kernels of merge.cu.
#pragma once

#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda {

/// A list that parse_list() has checked, but for its header and counts.
struct MergeList {
  const u32* begins;     ///< Entries before each block of the wire format, and after the last.
  const i16* exponents;  ///< For each block; null: plain values.
  const u16* offsets;
  const u8* values;
};

inline constexpr u32 kMaxMergeLists = 64;

/// A sum: which of the lists it is of, and where it goes. A table of them in device memory.
struct MergeTensor {
  u64 first;       ///< Tiles of the sums before it in the table.
  u64 first_list;  ///< Lists of the sums before it; its own ones are in rank order.
  u8* out;         ///< Any alignment.
  u64 elements;
  double postscale;
  u32 num_lists;  ///< At most kMaxMergeLists.
  u32 is_nan;     ///< 1: every element is NaN, as a list was not finite.
};

struct MergeArguments {
  const MergeTensor* tensors;
  const MergeList* lists;  ///< The lists of all tensors.
  u32 count;               ///< Tensors.
  u32 num_lists;           ///< Lists of all tensors.
  u32 dtype;               ///< DataType of the sums, and of lists without exponents.
};
static_assert(sizeof(MergeArguments) == 32 && sizeof(MergeTensor) == 48 && sizeof(MergeList) == 32);

inline constexpr u32 kMergeThreads = 256;
/// Elements of a block of threads.
inline constexpr u32 kMergeTile = 4096;

}  // namespace lightcc::cuda

/// X(name) for each kernel, with a block for each tile of each sum.
#define LIGHTCC_MERGE_KERNELS(X) X(lightcc_merge)
