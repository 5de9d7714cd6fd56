// The top-k pass without any instruction beyond the baseline: what other levels are held to.
#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/compression/kernels/topk_block_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 16;
#include "lightcc/collectives/kernels/plain_lanes.inl"

using Doubles [[gnu::vector_size(16)]] = double;
using Longs [[gnu::vector_size(16)]] = std::int64_t;

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
