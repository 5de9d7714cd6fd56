// The top-k pass with AVX-512 F, BW, DQ and VL. Compiled with flags of its own: see
// topk_block_job.hpp for what must not be done here.
//
// Selected lanes are compressed in a register and stored as a whole vector: compressing straight to
// memory is microcoded, and slow, on AMD's Zen 4.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/compression/kernels/topk_block_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 64;
using Floats [[gnu::vector_size(kVectorBytes)]] = float;
using Doubles [[gnu::vector_size(kVectorBytes)]] = double;
using Words [[gnu::vector_size(kVectorBytes)]] = std::int32_t;
using Longs [[gnu::vector_size(kVectorBytes)]] = std::int64_t;

// The intrinsics without a mask start from an uninitialised register, of which gcc 12 warns.
constexpr __mmask16 kAllLanes = 0xffff;

[[gnu::always_inline]] inline Floats halves_to_floats(const std::byte* from) {
  __m256i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return _mm512_maskz_cvtph_ps(kAllLanes, halves);
}

[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  __m256i shorts;
  __builtin_memcpy(&shorts, from, sizeof(shorts));
  return __builtin_bit_cast(Words, _mm512_maskz_cvtepu16_epi32(kAllLanes, shorts));
}

[[gnu::always_inline]] inline unsigned hits(const Words& keys, const Words& threshold) {
  return _mm512_cmpge_epi32_mask(__builtin_bit_cast(__m512i, keys),
                                 __builtin_bit_cast(__m512i, threshold));
}

[[gnu::always_inline]] inline unsigned hits(const Longs& keys, const Longs& threshold) {
  return _mm512_cmpge_epi64_mask(__builtin_bit_cast(__m512i, keys),
                                 __builtin_bit_cast(__m512i, threshold));
}

[[gnu::always_inline]] inline Floats without_hits(const Floats& x,
                                                  unsigned hit,
                                                  const Words& /*keys*/,
                                                  const Words& /*threshold*/) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(~hit), x);
}

[[gnu::always_inline]] inline Doubles without_hits(const Doubles& x,
                                                   unsigned hit,
                                                   const Longs& /*keys*/,
                                                   const Longs& /*threshold*/) {
  return _mm512_maskz_mov_pd(static_cast<__mmask8>(~hit), x);
}

[[gnu::always_inline]] inline void append(
    const Floats& x, unsigned hit, std::size_t base, std::uint16_t* offsets, std::byte* values) {
  const auto mask = static_cast<__mmask16>(hit);
  const __m512 packed = _mm512_maskz_compress_ps(mask, x);
  __builtin_memcpy(values, &packed, sizeof(packed));
  const Words lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Words positions = lanes + static_cast<std::int32_t>(base);
  const __m512i chosen = _mm512_maskz_compress_epi32(mask, __builtin_bit_cast(__m512i, positions));
  const __m256i shorts = _mm512_maskz_cvtepi32_epi16(kAllLanes, chosen);
  __builtin_memcpy(offsets, &shorts, sizeof(shorts));
}

[[gnu::always_inline]] inline void append(
    const Doubles& x, unsigned hit, std::size_t base, std::uint16_t* offsets, std::byte* values) {
  const auto mask = static_cast<__mmask8>(hit);
  const __m512d packed = _mm512_maskz_compress_pd(mask, x);
  __builtin_memcpy(values, &packed, sizeof(packed));
  using HalfWords [[gnu::vector_size(32)]] = std::int32_t;
  const HalfWords lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  const HalfWords positions = lanes + static_cast<std::int32_t>(base);
  const __m256i chosen = _mm256_maskz_compress_epi32(mask, __builtin_bit_cast(__m256i, positions));
  const __m128i shorts = _mm256_maskz_cvtepi32_epi16(static_cast<__mmask8>(kAllLanes), chosen);
  __builtin_memcpy(offsets, &shorts, sizeof(shorts));
}

[[gnu::always_inline]] inline void store_past_caches(std::byte* to, const Floats& x) {
  _mm512_stream_ps(reinterpret_cast<float*>(to), x);
}

[[gnu::always_inline]] inline void store_past_caches(std::byte* to, const Doubles& x) {
  _mm512_stream_pd(reinterpret_cast<double*>(to), x);
}

[[gnu::always_inline]] inline void end_of_stores_past_caches() {
  _mm_sfence();
}

#include "lightcc/compression/kernels/topk_block_body.inl"

}  // namespace

TopkBlockResult detail::topk_block_avx512(const TopkBlockJob& job) {
  return run_job(job);
}

}  // namespace lightcc

#endif
