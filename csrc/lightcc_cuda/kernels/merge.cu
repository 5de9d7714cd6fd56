// The sum of sparse lists as dense elements: merge_lists() of compression/merge.hpp, bit for bit.
//
// A block of threads takes a tile, whose sums it keeps in shared memory. It finds the tile's
// entries in each list by binary search, and adds the lists one after another, in rank order. An
// index occurs once in a list, so no two threads add to one element at a time.
//
// Lists may come from elsewhere. Whatever their bytes are, nothing is read or written outside of
// the arrays. A list whose header or counts are damaged is flagged. So are damaged entries, where
// the kernel that checks them runs: both together want what parse_list() wants. A sum with a
// flagged list is NaN.
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

LIGHTCC_DEVICE u64 merged_blocks(const MergeTensor& t) {
  return tiles_of(t.phase + t.elements, kTopkWireBlock);
}

/// `list`: of the sum's own ones.
LIGHTCC_DEVICE void flag_damage(const MergeTensor& t, u32 list) {
  u32* const is_void = t.flags;
  atomic_or(is_void, 1);
  atomic_or(t.flags + 1 + list / 32, 1U << list % 32);
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
  const u64 expected =
      kTopkMagic | u64{t.dtype} << kTopkDtypeShift | scales | t.phase << kTopkPhaseShift;
  damaged = damaged || (list.header[0] & ~kNonFinite) != expected || list.header[1] != total ||
            total > (is_finite ? t.capacity : 0);
  if (damaged) {
    flag_damage(t, static_cast<u32>(block_index() - t.first_list));
  }
  if (thread_index() == 0 && !is_finite) {
    atomic_or(t.flags, 1);
  }
}

/// Looks at the entries of lists. The blocks of threads that share a block of the wire format look
/// at as many of them.
template <typename Element>
struct MergeChecker {
  using Wire = typename Element::Wire;
  using Lane = typename Element::Lane;
  // What compression/float_types.hpp says of values with scales.
  static constexpr u32 kHalfLimitBits = 0x77ff;
  static constexpr int kMinExponent = sizeof(Lane) == 4 ? -125 : -1000;
  static constexpr int kMaxExponent = sizeof(Lane) == 4 ? 113 : 1009;

  const MergeTensor& t;
  u64 block;
  u32 share;  ///< Which of `shares`.
  u32 shares;
  u32 first_offset;  ///< That the block may have.
  u32 end_offset;

  LIGHTCC_DEVICE_MEMBER bool has_value(const MergeList& list, u64 entry) const {
    if (list.exponents == nullptr) {
      return key_of(Element::decode(load_any<Wire>(list.values + entry * sizeof(Wire)))) <
             KeyOf<Lane>::kInfinity;
    }
    return (u32{load_any<u16>(list.values + entry * sizeof(u16))} & 0x7fffU) <= kHalfLimitBits;
  }

  /// What this thread finds.
  LIGHTCC_DEVICE_MEMBER bool is_damaged(const MergeList& list, u64 index) const {
    const u64 begin = min_of<u64>(t.begins[index * merged_blocks(t) + block], t.capacity);
    const u64 count = min_of<u64>(t.capacity - begin, list.counts[block]);
    const u64 end = begin + count * (share + 1) / shares;
    const bool has_scale = list.exponents != nullptr && share == 0 && thread_index() == 0;
    bool damaged =
        has_scale && (list.exponents[block] < kMinExponent || list.exponents[block] > kMaxExponent);
    for (u64 entry = begin + count * share / shares + thread_index(); entry < end;
         entry += kMergeThreads) {
      const u32 offset = list.offsets[entry];
      const u32 next = entry + 1 < begin + count ? list.offsets[entry + 1] : end_offset;
      damaged = damaged || offset < first_offset || offset >= next || !has_value(list, entry);
    }
    return damaged;
  }
};

template <typename Element>
LIGHTCC_DEVICE_MEMBER void check(const MergeArguments& a) {
  constexpr u32 kTilesOfBlock = kTopkWireBlock / kMergeTile;
  const MergeTensor& t = a.tensors[row_at(a.tensors, a.count, block_index())];
  const u64 tile = block_index() - t.first;
  const u64 block = tile / kTilesOfBlock;
  const auto elements =
      static_cast<u32>(min_of<u64>(t.phase + t.elements - block * kTopkWireBlock, kTopkWireBlock));
  const MergeChecker<Element> checker{t,
                                      block,
                                      static_cast<u32>(tile % kTilesOfBlock),
                                      static_cast<u32>(tiles_of(elements, kMergeTile)),
                                      block == 0 ? static_cast<u32>(t.phase) : 0,
                                      elements};
  for (u32 i = 0; i < t.num_lists; ++i) {
    if (vote(checker.is_damaged(a.lists[t.first_list + i], i)) != 0 &&
        thread_index() % kWarpLanes == 0) {
      flag_damage(t, i);
    }
  }
}

#define LIGHTCC_DEFINE_CHECK(name, type)                          \
  LIGHTCC_KERNEL(kMergeThreads, 4) name(const MergeArguments a) { \
    check<type>(a);                                               \
  }
LIGHTCC_MERGE_CHECK_KERNELS(LIGHTCC_DEFINE_CHECK)

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
  u32 first_offset;  ///< Of the tile, in the block.

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
        continue;  // Of a damaged list.
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
  const u64 start = (block_index() - t.first) * kMergeTile;  // With the phase.
  const bool is_nan = t.flags[0] != 0;
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
    if (start + i >= t.phase && start + i < t.phase + t.elements) {
      const u64 element = start + i - t.phase;
      store_any<Wire>(t.out + element * sizeof(Wire), is_nan ? nan : merger.result(i));
    }
  }
}

#define LIGHTCC_DEFINE_MERGE(name, type)                          \
  LIGHTCC_KERNEL(kMergeThreads, 4) name(const MergeArguments a) { \
    merge<type>(a);                                               \
  }
LIGHTCC_MERGE_KERNELS(LIGHTCC_DEFINE_MERGE)

}  // namespace lightcc::cuda
