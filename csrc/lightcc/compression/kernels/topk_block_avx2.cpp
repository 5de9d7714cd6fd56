// The top-k pass with AVX2 and F16C. Compiled with flags of its own: see topk_block_job.hpp for
// what must not be done here.
//
// AVX2 cannot compress; a table says, for each set of lanes, how to permute them to the front.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/compression/kernels/topk_block_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 32;
using Floats [[gnu::vector_size(kVectorBytes)]] = float;
using Doubles [[gnu::vector_size(kVectorBytes)]] = double;
using Words [[gnu::vector_size(kVectorBytes)]] = std::int32_t;
using Longs [[gnu::vector_size(kVectorBytes)]] = std::int64_t;

/// For each set of 8 lanes: its members, ascending, then zeros.
struct LaneTable {
  constexpr LaneTable() {
    for (unsigned set = 0; set < 256; ++set) {
      std::size_t at = 0;
      for (unsigned lane = 0; lane < 8; ++lane) {
        if ((set >> lane & 1U) != 0) {
          rows[set][at++] = lane;
        }
      }
    }
  }
  // No std::array here (topk_block_job.hpp). NOLINTNEXTLINE(modernize-avoid-c-arrays)
  alignas(32) std::uint32_t rows[256][8] = {};
};
constexpr LaneTable kLanesOfSet;

/// The set of words that make up a set of 4 double words.
[[gnu::always_inline]] inline unsigned doubled(unsigned set) {
  return (set & 1U) * 3U | (set >> 1 & 1U) * 12U | (set >> 2 & 1U) * 48U | (set >> 3 & 1U) * 192U;
}

[[gnu::always_inline]] inline __m256i lanes_of(unsigned set) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanesOfSet.rows[set]));
}

[[gnu::always_inline]] inline Floats halves_to_floats(const std::byte* from) {
  __m128i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return _mm256_cvtph_ps(halves);
}

[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  __m128i shorts;
  __builtin_memcpy(&shorts, from, sizeof(shorts));
  return __builtin_bit_cast(Words, _mm256_cvtepu16_epi32(shorts));
}

[[gnu::always_inline]] inline unsigned hits(const Words& keys, const Words& threshold) {
  const Words reached = keys >= threshold;
  return static_cast<unsigned>(_mm256_movemask_ps(__builtin_bit_cast(__m256, reached)));
}

[[gnu::always_inline]] inline unsigned hits(const Longs& keys, const Longs& threshold) {
  const Longs reached = keys >= threshold;
  return static_cast<unsigned>(_mm256_movemask_pd(__builtin_bit_cast(__m256d, reached)));
}

template <typename V, typename Keys>
[[gnu::always_inline]] inline V without_hits(const V& x,
                                             unsigned /*hit*/,
                                             const Keys& keys,
                                             const Keys& threshold) {
  return __builtin_bit_cast(V, keys >= threshold ? Keys{} : __builtin_bit_cast(Keys, x));
}

/// Stores the lower halves of the first `Count` (4 or 8) words plus `base`.
template <std::size_t Count>
[[gnu::always_inline]] inline void store_offsets(std::uint16_t* to,
                                                 __m256i lanes,
                                                 std::size_t base) {
  // Intrinsics all along: this file is the AVX2 level.
  const __m256i positions = _mm256_add_epi32(  // NOLINT(portability-simd-intrinsics)
      lanes,
      _mm256_set1_epi32(static_cast<int>(base)));
  const __m128i shorts =
      _mm_packus_epi32(_mm256_castsi256_si128(positions), _mm256_extracti128_si256(positions, 1));
  __builtin_memcpy(to, &shorts, Count * sizeof(std::uint16_t));
}

[[gnu::always_inline]] inline void append(
    const Floats& x, unsigned hit, std::size_t base, std::uint16_t* offsets, std::byte* values) {
  const __m256i lanes = lanes_of(hit);
  const __m256 packed = _mm256_permutevar8x32_ps(x, lanes);
  __builtin_memcpy(values, &packed, sizeof(packed));
  store_offsets<8>(offsets, lanes, base);
}

[[gnu::always_inline]] inline void append(
    const Doubles& x, unsigned hit, std::size_t base, std::uint16_t* offsets, std::byte* values) {
  const __m256 packed =
      _mm256_permutevar8x32_ps(__builtin_bit_cast(__m256, x), lanes_of(doubled(hit)));
  __builtin_memcpy(values, &packed, sizeof(packed));
  store_offsets<4>(offsets, lanes_of(hit), base);
}

[[gnu::always_inline]] inline void store_past_caches(std::byte* to, const Floats& x) {
  _mm256_stream_ps(reinterpret_cast<float*>(to), x);
}

[[gnu::always_inline]] inline void store_past_caches(std::byte* to, const Doubles& x) {
  _mm256_stream_pd(reinterpret_cast<double*>(to), x);
}

[[gnu::always_inline]] inline void end_of_stores_past_caches() {
  _mm_sfence();
}

#include "lightcc/compression/kernels/topk_block_body.inl"

}  // namespace

TopkBlockResult detail::topk_block_avx2(const TopkBlockJob& job) {
  return run_job(job);
}

}  // namespace lightcc

#endif
