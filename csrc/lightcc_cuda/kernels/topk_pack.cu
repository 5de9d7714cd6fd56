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
  const u64 part = block_index() - t.first_part;
  // The blocks of a tensor copy together, 2 bytes at a time: lists are aligned to no more.
  const auto copy = [&](const void* from, u64 begin, u64 end) {
    for (u64 i = part * kTopkThreads + thread_index(); i < (end - begin) / sizeof(u16);
         i += t.parts * kTopkThreads) {
      reinterpret_cast<u16*>(to + begin)[i] = static_cast<const u16*>(from)[i];
    }
  };
  copy(t.header, 0, PackedList::kCounts);
  copy(t.counts, PackedList::kCounts, list.exponents);
  copy(t.exponents, list.exponents, list.offsets);
  copy(t.offsets, list.offsets, list.values);
  copy(t.values, list.values, list.end);
  if (part == 0 && thread_index() < kWords) {
    reinterpret_cast<u64*>(a.reports + row)[thread_index()] =
        reinterpret_cast<const u64*>(t.progress)[thread_index()];
  }
}

}  // namespace lightcc::cuda
