// Reductions without any instruction beyond the baseline: what other levels are held to, and what
// runs on other architectures than x86-64.
#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/collectives/kernels/reduce_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 16;
using Floats [[gnu::vector_size(16)]] = float;
using Words [[gnu::vector_size(16)]] = std::int32_t;  // Signed: SSE compares no other.
using Shorts [[gnu::vector_size(16)]] = std::uint16_t;

/// Four 16-bit numbers, each in the lower half of a word (little-endian).
[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  Shorts shorts{};
  __builtin_memcpy(&shorts, from, 8);
  return __builtin_bit_cast(Words,
                            __builtin_shufflevector(shorts, Shorts{}, 0, 8, 1, 9, 2, 10, 3, 11));
}

/// Stores the lower halves.
[[gnu::always_inline]] inline void store_words(std::byte* to, Words words) {
  const auto shorts = __builtin_bit_cast(Shorts, words);
  const Shorts packed = __builtin_shufflevector(shorts, shorts, 0, 2, 4, 6, 0, 2, 4, 6);
  __builtin_memcpy(to, &packed, 8);
}

// The two conversions are those of base/half.hpp, four at a time, less the payload of NaNs:
// reductions know only one NaN.

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

[[gnu::always_inline]] inline void floats_to_halves(std::byte* to, Floats floats) {
  const Words zero{};
  const auto bits = __builtin_bit_cast(Words, floats);
  const Words magnitude = bits & 0x7fffffff;
  const Words normal = (magnitude - (112 << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  const Words is_small = magnitude < (113 << 23);
  const Floats small = __builtin_bit_cast(Floats, is_small ? magnitude : zero);
  const Words subnormal = __builtin_bit_cast(Words, small + 0.5F) - (126 << 23);
  Words result = is_small ? subnormal : normal;
  result = magnitude >= (143 << 23) ? zero + 0x7c00 : result;
  result = magnitude > (255 << 23) ? zero + 0x7e00 : result;
  store_words(to, result | ((bits >> 16) & 0x8000));
}

#include "lightcc/collectives/kernels/reduce_body.inl"

}  // namespace

void detail::reduce_plain(const ReduceJob& job) {
  run_job(job);
}

}  // namespace lightcc
