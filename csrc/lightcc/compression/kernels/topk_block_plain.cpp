// The top-k pass without any instruction beyond the baseline: what other levels are held to.
#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/compression/kernels/topk_block_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 16;
using Floats [[gnu::vector_size(16)]] = float;
using Doubles [[gnu::vector_size(16)]] = double;
using Words [[gnu::vector_size(16)]] = std::int32_t;  // Signed: SSE compares no other.
using Longs [[gnu::vector_size(16)]] = std::int64_t;
using Shorts [[gnu::vector_size(16)]] = std::uint16_t;

/// Four 16-bit numbers, each in the lower half of a word (little-endian).
[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  Shorts shorts{};
  __builtin_memcpy(&shorts, from, 8);
  return __builtin_bit_cast(Words,
                            __builtin_shufflevector(shorts, Shorts{}, 0, 8, 1, 9, 2, 10, 3, 11));
}

/// half_to_float() of base/half.hpp, four at a time.
[[gnu::always_inline]] inline Floats halves_to_floats(const std::byte* from) {
  const Words halves = load_words(from);
  const Words magnitude = halves & 0x7fff;
  const Words shifted = magnitude << 13;
  const Words subnormal =
      __builtin_bit_cast(Words, __builtin_convertvector(magnitude, Floats) * 0x1p-24F);
  const Words finite = magnitude < 0x0400 ? subnormal : shifted + (112 << 23);
  const Words result = magnitude >= 0x7c00 ? shifted + (224 << 23) : finite;
  return __builtin_bit_cast(Floats, result | ((halves ^ magnitude) << 16));
}

/// Bit i: lane i of `keys` is at least `threshold`.
template <typename Keys>
[[gnu::always_inline]] inline unsigned hits(const Keys& keys, const Keys& threshold) {
  const auto reached = __builtin_bit_cast(Longs, keys >= threshold);
  if ((reached[0] | reached[1]) == 0) {
    return 0;
  }
  unsigned found = 0;
  for (std::size_t lane = 0; lane < sizeof(Keys) / sizeof(keys[0]); ++lane) {
    found |= (keys[lane] >= threshold[lane] ? 1U : 0U) << lane;
  }
  return found;
}

/// `x` where the lane was not hit, else 0.0.
template <typename V, typename Keys>
[[gnu::always_inline]] inline V without_hits(const V& x,
                                             unsigned /*hit*/,
                                             const Keys& keys,
                                             const Keys& threshold) {
  return __builtin_bit_cast(V, keys >= threshold ? Keys{} : __builtin_bit_cast(Keys, x));
}

/// Appends the lanes that were hit and their offsets, of which the first lane's is `base`.
template <typename V>
[[gnu::always_inline]] inline void append(
    const V& x, unsigned hit, std::size_t base, std::uint16_t* offsets, std::byte* values) {
  for (std::size_t lane = 0, at = 0; lane < sizeof(V) / sizeof(x[0]); ++lane) {
    if ((hit >> lane & 1U) != 0) {
      const auto value = x[lane];
      offsets[at] = static_cast<std::uint16_t>(base + lane);
      __builtin_memcpy(values + at * sizeof(value), &value, sizeof(value));
      ++at;
    }
  }
}

template <typename V>
[[gnu::always_inline]] inline void store_past_caches(std::byte* to, const V& x) {
  __builtin_memcpy(to, &x, sizeof(V));
}

[[gnu::always_inline]] inline void end_of_stores_past_caches() {}

#include "lightcc/compression/kernels/topk_block_body.inl"

}  // namespace

TopkBlockResult detail::topk_block_plain(const TopkBlockJob& job) {
  return run_job(job);
}

}  // namespace lightcc
