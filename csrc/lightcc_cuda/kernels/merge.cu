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

template <typename Element>
struct Merger {
  using Wire = typename Element::Wire;
  using Lane = typename Element::Lane;

  const MergeTensor& t;
  Lane* sums;
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

  LIGHTCC_DEVICE_MEMBER Lane value(const MergeList& list, u64 entry) const {
    if (list.exponents == nullptr) {
      return Element::decode(load_any<Wire>(list.values + entry * sizeof(Wire)));
    }
    const auto half = half_to_float(load_any<u16>(list.values + entry * sizeof(u16)));
    return static_cast<Lane>(half) * power_of_two<Lane>(list.exponents[block]);
  }

  LIGHTCC_DEVICE_MEMBER void add(const MergeList& list, MergeRange range) const {
    for (u32 entry = range.first + thread_index(); entry < range.end; entry += kMergeThreads) {
      const u32 at = list.offsets[entry] - first_offset;
      const u32 bit = 1U << at % 32;
      const bool has_sum = (atomic_or(present + at / 32, bit) & bit) != 0;
      const Lane x = value(list, entry);
      sums[at] = has_sum ? sums[at] + x : x;
    }
  }

  LIGHTCC_DEVICE_MEMBER Wire result(u32 at) const {
    if ((present[at / 32] >> at % 32 & 1U) == 0) {
      return Wire{0};
    }
    const Lane sum = sums[at];
    return Element::encode(t.postscale != 1.0 ? sum * static_cast<Lane>(t.postscale) : sum);
  }
};

template <typename Element>
LIGHTCC_DEVICE_MEMBER void merge(const MergeArguments& a) {
  using Wire = typename Element::Wire;
  using Lane = typename Element::Lane;
  LIGHTCC_SHARED(Lane, sums, kMergeTile);
  LIGHTCC_SHARED(u32, present, kMergeTile / 32);
  LIGHTCC_SHARED(MergeRange, ranges, kMaxMergeLists);
  const MergeTensor& t = a.tensors[row_at(a.tensors, a.count, block_index())];
  const MergeList* const lists = a.lists + t.first_list;
  const u64 start = (block_index() - t.first) * kMergeTile;
  const Merger<Element> merger{
      t, sums, present, start / kTopkWireBlock, static_cast<u32>(start % kTopkWireBlock)};
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
  const Wire nan = Element::encode(__builtin_bit_cast(Lane, KeyOf<Lane>::kNan));
  for (u32 i = thread_index(); i < kMergeTile; i += kMergeThreads) {
    if (start + i < t.elements) {
      store_any<Wire>(t.out + (start + i) * sizeof(Wire), t.is_nan != 0 ? nan : merger.result(i));
    }
  }
}

#define LIGHTCC_DEFINE(name, function, type)                      \
  LIGHTCC_KERNEL(kMergeThreads, 4) name(const MergeArguments a) { \
    function<type>(a);                                            \
  }
LIGHTCC_MERGE_KERNELS(LIGHTCC_DEFINE)

}  // namespace lightcc::cuda
