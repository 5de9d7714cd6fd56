// Reductions without any instruction beyond the baseline: what other levels are held to, and what
// runs on other architectures than x86-64.
#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/collectives/kernels/reduce_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 16;
#include "lightcc/collectives/kernels/plain_lanes.inl"

/// Stores the lower halves.
[[gnu::always_inline]] inline void store_words(std::byte* to, Words words) {
  const auto shorts = __builtin_bit_cast(Shorts, words);
  const Shorts packed = __builtin_shufflevector(shorts, shorts, 0, 2, 4, 6, 0, 2, 4, 6);
  __builtin_memcpy(to, &packed, 8);
}

/// float_to_half() of base/half.hpp, four at a time, less the payload of NaNs: reductions know only
/// one NaN.
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
