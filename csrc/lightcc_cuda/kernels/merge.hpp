// Arguments of the kernels of merge.cu.
#pragma once

#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda {

/// The parts of a list (compression/topk/list_layout.hpp), wherever they lie.
struct MergeList {
  const u64* header;  ///< 16 bytes.
  const u32* counts;
  const i16* exponents;  ///< Null: plain values.
  const u16* offsets;
  const u8* values;
};

inline constexpr u32 kMaxMergeLists = 64;

/// A sum: which of the lists it is of, and where it goes. A table of them in device memory.
struct MergeTensor {
  u64 first;       ///< Tiles of the sums before it in the table.
  u64 first_list;  ///< Lists of the sums before it; its own ones are in rank order.
  u32* begins;     ///< Scratch: a word for each block of each of its lists.
  u32* is_nan;     ///< 1: the sum is NaN. Becomes that if a list is not finite or damaged.
  u8* out;         ///< Any alignment.
  u64 elements;
  u64 capacity;  ///< Entries that each list has room for.
  double postscale;
  u32 num_lists;  ///< At most kMaxMergeLists; 0 where the sum is NaN anyway.
  u32 dtype;      ///< DataType, of the lists and of the sum.
};

struct MergeArguments {
  const MergeTensor* tensors;
  const MergeList* lists;  ///< The lists of all tensors.
  u32 count;               ///< Tensors.
  u32 num_lists;           ///< Lists of all tensors.
};
static_assert(sizeof(MergeArguments) == 24 && sizeof(MergeTensor) == 72 && sizeof(MergeList) == 40);

inline constexpr u32 kMergeThreads = 256;
/// Elements of a block of threads.
inline constexpr u32 kMergeTile = 4096;

}  // namespace lightcc::cuda

/// X(name, function, type), with a block for each tile of each sum; after
/// lightcc_merge_begin, which has one for each list.
#define LIGHTCC_MERGE_KERNELS(X) LIGHTCC_OF_ELEMENTS(X, lightcc_merge, merge)
/// X(name, ...) for all of them.
#define LIGHTCC_ALL_MERGE_KERNELS(X) \
  X(lightcc_merge_begin)             \
  LIGHTCC_MERGE_KERNELS(X)
