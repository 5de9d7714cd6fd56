// The sum of sparse lists as dense elements: merge_lists() of compression/topk/merge.hpp, bit for
// bit.
//
// A block of threads takes a tile, whose sums it keeps in shared memory. It finds the tile's
// entries in each list by binary search, and adds the lists one after another, in rank order. An
// index occurs once in a list, so no two threads add to one element at a time.
//
// Lists come from elsewhere, and parse_list() has checked them. Whatever their bytes are, nothing
// is read or written outside of the arrays, and a sum of a list whose header or counts are damaged
// is NaN.
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

LIGHTCC_DEVICE u64 merged_blocks(const MergeTensor& t) {
  return tiles_of(t.elements, kTopkWireBlock);
}

/// Where the entries of each block begin; a block of threads for each list.
LIGHTCC_KERNEL(kMergeThreads, 4) lightcc_merge_begin(const MergeArguments a) {
  LIGHTCC_SHARED(u32, sums, kMergeThreads);
  const MergeList& list = a.lists[block_index()];
  const MergeTensor& t =
      a.tensors[last_row<&MergeTensor::first_list>(a.tensors, a.count, block_index())];
  const u64 blocks = merged_blocks(t);
  const u64 share = tiles_of(blocks, kMergeThreads);
  const u64 first = min_of(share * thread_index(), blocks);
  const u64 end = min_of(first + share, blocks);
  u32 sum = 0;
  bool damaged = false;
  for (u64 i = first; i < end; ++i) {
    damaged = damaged || list.counts[i] > kTopkWireBlock;
    sum += min_of(list.counts[i], kTopkWireBlock);
  }
  sums[thread_index()] = sum;
  sync_block();
  u32 before = 0;
  u32 total = 0;
  for (u32 i = 0; i < kMergeThreads; ++i) {
    before += i < thread_index() ? sums[i] : 0;
    total += sums[i];
  }
  u32* begins = t.begins + (block_index() - t.first_list) * blocks;
  for (u64 i = first; i < end; ++i) {
    begins[i] = before;
    before += min_of(list.counts[i], kTopkWireBlock);
  }
  constexpr u64 kNonFinite = kTopkFlagNonFinite << kTopkFlagsShift;
  const bool is_finite = (list.header[0] & kNonFinite) == 0;
  const u64 scales = list.exponents != nullptr ? kTopkFlagScales << kTopkFlagsShift : 0;
  const u64 expected = kTopkMagic | u64{t.dtype} << kTopkDtypeShift | scales;
  damaged = damaged || (list.header[0] & ~kNonFinite) != expected || list.header[1] != total ||
            total > t.capacity;
  if (damaged || !is_finite) {
    atomic_or(t.is_nan, 1);
  }
}

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
  LIGHTCC_DEVICE_MEMBER MergeRange range_of(const MergeList& list, u64 index) const {
    const u64 begin = min_of<u64>(t.begins[index * merged_blocks(t) + block], t.capacity);
    const auto count = static_cast<u32>(min_of<u64>(list.counts[block], t.capacity - begin));
    const u16* offsets = list.offsets + begin;
    const auto base = static_cast<u32>(begin);
    return {base + first_from(offsets, count, first_offset),
            base + first_from(offsets, count, first_offset + kMergeTile)};
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
      const u32 offset = list.offsets[entry];
      if (offset < first_offset || offset - first_offset >= kMergeTile) {
        continue;  // The list is damaged.
      }
      const u32 at = offset - first_offset;
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
  const bool is_nan = *t.is_nan != 0;
  const Merger<Element> merger{
      t, sums, present, start / kTopkWireBlock, static_cast<u32>(start % kTopkWireBlock)};
  for (u32 i = thread_index(); i < kMergeTile / 32; i += kMergeThreads) {
    present[i] = 0;
  }
  for (u32 i = thread_index(); i < t.num_lists; i += kMergeThreads) {
    ranges[i] = merger.range_of(lists[i], i);
  }
  sync_block();
  for (u32 i = 0; i < t.num_lists; ++i) {
    merger.add(lists[i], ranges[i]);
    sync_block();
  }
  const Wire nan = Element::encode(__builtin_bit_cast(Lane, KeyOf<Lane>::kNan));
  for (u32 i = thread_index(); i < kMergeTile; i += kMergeThreads) {
    if (start + i < t.elements) {
      store_any<Wire>(t.out + (start + i) * sizeof(Wire), is_nan ? nan : merger.result(i));
    }
  }
}

#define LIGHTCC_DEFINE(name, function, type)                      \
  LIGHTCC_KERNEL(kMergeThreads, 4) name(const MergeArguments a) { \
    function<type>(a);                                            \
  }
LIGHTCC_MERGE_KERNELS(LIGHTCC_DEFINE)

}  // namespace lightcc::cuda
