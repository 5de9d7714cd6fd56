// Lists of a table of tensors, one after another as they travel, so that one copy brings all of
// them to the host: ListLayout of compression/topk/list_layout.hpp. How long they are is known here
// alone.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

/// Where the parts of a list lie, in bytes.
struct PackedList {
  static constexpr u64 kCounts = 16;
  u64 exponents;
  u64 offsets;
  u64 values;
  u64 end;

  LIGHTCC_DEVICE_MEMBER explicit PackedList(const TopkTensor& t)
      : exponents(kCounts + tiles_of(t.numel, kTopkWireBlock) * sizeof(u32)),
        offsets(exponents +
                (t.exponents != nullptr ? tiles_of(t.numel, kTopkWireBlock) * sizeof(i16) : 0)),
        values(offsets + t.header[1] * sizeof(u16)),
        end(values + t.header[1] * t.value_bytes) {}
};

/// What the blocks of a tensor copy together, 2 bytes at a time: lists are aligned to no more.
struct PackingBlock {
  u64 part;
  u64 parts;

  LIGHTCC_DEVICE_MEMBER void copy(const void* from, u8* to, u64 bytes) const {
    const auto* const source = static_cast<const u16*>(from);
    for (u64 i = part * kTopkThreads + thread_index(); i < bytes / sizeof(u16);
         i += parts * kTopkThreads) {
      reinterpret_cast<u16*>(to)[i] = source[i];
    }
  }
};

LIGHTCC_KERNEL(kTopkThreads, 4) lightcc_topk_pack(const TopkArguments a) {
  static_assert(kMaxTopkTensors <= kTopkThreads);
  constexpr u32 kWords = sizeof(TopkProgress) / sizeof(u64);
  LIGHTCC_SHARED(u64, lengths, kTopkThreads);
  const u32 row = row_of_part(a);
  const TopkTensor& t = a.tensors[row];
  // Each thread looks at one of the lists before this one.
  lengths[thread_index()] =
      thread_index() < row ? tiles_of(PackedList(a.tensors[thread_index()]).end, kTopkPackAlignment)
                           : 0;
  for (u32 half = kTopkThreads / 2; half > 0; half /= 2) {
    sync_block();
    if (thread_index() < half) {
      lengths[thread_index()] += lengths[thread_index() + half];
    }
  }
  sync_block();
  u8* const to = a.packed + lengths[0] * kTopkPackAlignment;
  const PackedList list(t);
  const PackingBlock block{block_index() - t.first_part, t.parts};
  block.copy(t.header, to, PackedList::kCounts);
  block.copy(t.counts, to + PackedList::kCounts, list.exponents - PackedList::kCounts);
  block.copy(t.exponents, to + list.exponents, list.offsets - list.exponents);
  block.copy(t.offsets, to + list.offsets, list.values - list.offsets);
  block.copy(t.values, to + list.values, list.end - list.values);
  if (block.part == 0 && thread_index() < kWords) {
    reinterpret_cast<u64*>(a.reports + row)[thread_index()] =
        reinterpret_cast<const u64*>(t.progress)[thread_index()];
  }
}

}  // namespace lightcc::cuda
