// Pack and unpack: between many tensors and one bucket in one launch. `lightcc_copy_BYTES` copies
// elements of so many bytes.
//
// A block takes a tile of the bucket at a time and finds by binary search which tensors lie in it.
// Several elements are one access where both ends are aligned to it.
#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/kernels/elements.hpp"

namespace lightcc::cuda {

/// The block's threads move `count` elements.
template <typename T>
LIGHTCC_DEVICE_MEMBER void move_run(const u8* from, u8* to, u64 count) {
  constexpr u32 kChunk = kVectorBytes / sizeof(T);
  using Moved = Chunk<T, kChunk>;
  u64 done = 0;
  if (is_aligned(reinterpret_cast<u64>(from), Moved::kBytes) &&
      is_aligned(reinterpret_cast<u64>(to), Moved::kBytes)) {
    const u64 chunks = count / kChunk;
    for (u64 i = thread_index(); i < chunks; i += block_threads()) {
      Moved::load(from + i * Moved::kBytes).store(to + i * Moved::kBytes);
    }
    done = chunks * kChunk;
  }
  for (u64 i = done + thread_index(); i < count; i += block_threads()) {
    store_any<T>(to + i * sizeof(T), load_any<T>(from + i * sizeof(T)));
  }
}

template <typename T>
LIGHTCC_DEVICE_MEMBER void move_bucket(const BucketArguments& a) {
  for (u64 begin = u64{block_index()} * kBucketTile; begin < a.total;
       begin += u64{grid_blocks()} * kBucketTile) {
    const u64 end = min_of(begin + kBucketTile, a.total);
    u32 row = row_at(a.rows, a.count, begin);
    for (u64 at = begin; at < end; ++row) {
      const u64 stop = row + 1 < a.count ? min_of(a.rows[row + 1].first, end) : end;
      const u64 inside = at - a.rows[row].first;
      u8* const tensor = a.rows[row].tensor;
      u8* const packed = a.bucket + at * sizeof(T);
      u8* const apart = tensor + inside * sizeof(T);
      const bool unpacks = a.unpacks != 0;
      move_run<T>(unpacks ? packed : apart, unpacks ? apart : packed, stop - at);
      at = stop;
    }
  }
}

#define LIGHTCC_DEFINE_COPY(name, type)                             \
  LIGHTCC_KERNEL(kBucketThreads, 4) name(const BucketArguments a) { \
    move_bucket<type>(a);                                           \
  }
LIGHTCC_COPY_KERNELS(LIGHTCC_DEFINE_COPY)

}  // namespace lightcc::cuda
