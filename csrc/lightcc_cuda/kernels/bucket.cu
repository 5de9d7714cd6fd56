// Pack and unpack: between many tensors and one bucket in one launch. `lightcc_copy_BYTES` copies
// elements of so many bytes. `lightcc_convert_FROM_TO` multiplies them by a factor and converts
// them; its bits are those of reduce() with one source and this factor.
//
// A block takes a tile of the bucket at a time and finds by binary search which tensors lie in it.
// Several elements are one access where both ends are aligned to it.
#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/kernels/elements.hpp"

namespace lightcc::cuda {

template <typename T>
struct CopyElement {
  using From = T;
  using To = T;
  static constexpr u32 kAtOnce = kVectorBytes / sizeof(T);
  double factor;
  LIGHTCC_DEVICE_MEMBER To operator()(From x) const { return x; }
};

template <typename Source, typename Target>
struct ConvertElement {
  using From = typename Source::Wire;
  using To = typename Target::Wire;
  static constexpr u32 kAtOnce =
      min_of<u32>(kComputedAtOnce, kVectorBytes / max_of(sizeof(From), sizeof(To)));
  double factor;
  LIGHTCC_DEVICE_MEMBER To operator()(From x) const {
    const auto lane = Source::decode(x);
    const auto scale = static_cast<typename Source::Factor>(factor);
    return Target::encode(factor != 1.0 ? scaled_lane(lane, scale) : lane);
  }
};

/// The block's threads move `count` elements.
template <typename Move>
LIGHTCC_DEVICE_MEMBER void move_run(const u8* from, u8* to, u64 count, Move move) {
  using From = typename Move::From;
  using To = typename Move::To;
  constexpr u32 kChunk = Move::kAtOnce;
  using Source = Chunk<From, kChunk>;
  using Target = Chunk<To, kChunk>;
  u64 done = 0;
  if (is_aligned(reinterpret_cast<u64>(from), Source::kBytes) &&
      is_aligned(reinterpret_cast<u64>(to), Target::kBytes)) {
    const u64 chunks = count / kChunk;
    for (u64 i = thread_index(); i < chunks; i += block_threads()) {
      const Source source = Source::load(from + i * Source::kBytes);
      Target target;
      LIGHTCC_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        target.at[j] = move(source.at[j]);
      }
      target.store(to + i * Target::kBytes);
    }
    done = chunks * kChunk;
  }
  for (u64 i = done + thread_index(); i < count; i += block_threads()) {
    store_any<To>(to + i * sizeof(To), move(load_any<From>(from + i * sizeof(From))));
  }
}

template <typename Move>
LIGHTCC_DEVICE_MEMBER void move_bucket(const BucketArguments& a) {
  const Move move{a.factor};
  constexpr u64 kFromBytes = sizeof(typename Move::From);
  constexpr u64 kToBytes = sizeof(typename Move::To);
  for (u64 begin = u64{block_index()} * kBucketTile; begin < a.total;
       begin += u64{grid_blocks()} * kBucketTile) {
    const u64 end = min_of(begin + kBucketTile, a.total);
    u32 row = row_at(a.rows, a.count, begin);
    for (u64 at = begin; at < end; ++row) {
      const u64 stop = row + 1 < a.count ? min_of(a.rows[row + 1].first, end) : end;
      const u64 inside = at - a.rows[row].first;
      u8* const tensor = a.rows[row].tensor;
      const u8* from = a.unpacks != 0 ? a.bucket + at * kFromBytes : tensor + inside * kFromBytes;
      u8* to = a.unpacks != 0 ? tensor + inside * kToBytes : a.bucket + at * kToBytes;
      move_run(from, to, stop - at, move);
      at = stop;
    }
  }
}

#define LIGHTCC_DEFINE_COPY(name, type)                             \
  LIGHTCC_KERNEL(kBucketThreads, 4) name(const BucketArguments a) { \
    move_bucket<CopyElement<type>>(a);                              \
  }
#define LIGHTCC_DEFINE_CONVERT(name, from, to)                      \
  LIGHTCC_KERNEL(kBucketThreads, 4) name(const BucketArguments a) { \
    move_bucket<ConvertElement<from, to>>(a);                       \
  }
LIGHTCC_COPY_KERNELS(LIGHTCC_DEFINE_COPY)
LIGHTCC_CONVERT_KERNELS(LIGHTCC_DEFINE_CONVERT)

}  // namespace lightcc::cuda
