// The sum of sparse lists as dense elements: merge_lists() of compression/topk/merge.hpp, bit for
// bit.
//
// A block of threads takes a tile, whose sums it keeps in shared memory. It finds the tile's
// entries in each list by binary search, and adds the lists one after another, in rank order. An
// index occurs once in a list, so no two threads add to one element at a time.
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

/// Entries [first, end) of a list.
struct MergeRange {
  u32 first;
  u32 end;
};

struct Merger {
  const MergeTensor& t;
  ElementType type;
  float* sums;
  u32* present;  ///< A bit for each element of the tile: whether it has a sum.
  u64 block;
  u32 first_offset;  ///< Where the tile begins in the block.

  /// The entries of the tile.
  LIGHTCC_DEVICE_MEMBER MergeRange range_of(const MergeList& list) const {
    const u32 begin = list.begins[block];
    const u32 count = list.begins[block + 1] - begin;
    const u16* offsets = list.offsets + begin;
    return {begin + first_from(offsets, count, first_offset),
            begin + first_from(offsets, count, first_offset + kMergeTile)};
  }

  /// Lists are aligned to 2 bytes.
  LIGHTCC_DEVICE_MEMBER float value(const MergeList& list, u64 entry) const {
    const auto half_at = [&](u64 i) { return load_input<u16>(list.values + i * sizeof(u16)); };
    if (list.exponents != nullptr) {
      return half_to_float(half_at(entry)) * power_of_two(list.exponents[block]);
    }
    if (type == ElementType::kFloat32) {
      return __builtin_bit_cast(float, half_at(2 * entry) | u32{half_at(2 * entry + 1)} << 16);
    }
    return decode_half(type, half_at(entry));
  }

  LIGHTCC_DEVICE_MEMBER void add(const MergeList& list, MergeRange range) const {
    for (u32 entry = range.first + thread_index(); entry < range.end; entry += kMergeThreads) {
      const u32 at = list.offsets[entry] - first_offset;
      const u32 bit = 1U << at % 32;
      const bool has_sum = (atomic_or(present + at / 32, bit) & bit) != 0;
      const float x = value(list, entry);
      sums[at] = has_sum ? sums[at] + x : x;
    }
  }

  LIGHTCC_DEVICE_MEMBER float result(u32 at) const {
    if (t.is_nan != 0) {
      return __builtin_bit_cast(float, 0x7fc00000U);
    }
    if ((present[at / 32] >> at % 32 & 1U) == 0) {
      return 0.0F;
    }
    return t.postscale != 1.0 ? sums[at] * static_cast<float>(t.postscale) : sums[at];
  }
};

LIGHTCC_KERNEL(kMergeThreads, 4) lightcc_merge(const MergeArguments a) {
  LIGHTCC_SHARED(float, sums, kMergeTile);
  LIGHTCC_SHARED(u32, present, kMergeTile / 32);
  LIGHTCC_SHARED(MergeRange, ranges, kMaxMergeLists);
  const MergeTensor& t = a.tensors[row_at(a.tensors, a.count, block_index())];
  const MergeList* const lists = a.lists + t.first_list;
  const u64 start = (block_index() - t.first) * kMergeTile;
  const auto type = static_cast<ElementType>(a.dtype);
  const Merger merger{
      t, type, sums, present, start / kTopkWireBlock, static_cast<u32>(start % kTopkWireBlock)};
  for (u32 i = thread_index(); i < kMergeTile / 32; i += kMergeThreads) {
    present[i] = 0;
  }
  for (u32 i = thread_index(); i < t.num_lists; i += kMergeThreads) {
    ranges[i] = merger.range_of(lists[i]);
  }
  sync_block();
  for (u32 i = 0; i < t.num_lists; ++i) {
    merger.add(lists[i], ranges[i]);
    sync_block();
  }
  for (u32 i = thread_index(); i < kMergeTile; i += kMergeThreads) {
    if (start + i < t.elements) {
      store_lane(type, t.out, start + i, merger.result(i));
    }
  }
}

}  // namespace lightcc::cuda
