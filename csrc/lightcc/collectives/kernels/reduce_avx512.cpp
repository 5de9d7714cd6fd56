// Reductions with AVX-512 F, BW, DQ and VL. Compiled with flags of its own: see reduce_job.hpp for
// what must not be done here.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/collectives/kernels/reduce_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 64;
using Floats [[gnu::vector_size(kVectorBytes)]] = float;
using Words [[gnu::vector_size(kVectorBytes)]] = std::int32_t;

// The intrinsics without a mask start from an uninitialised register, of which gcc 12 warns.
constexpr __mmask16 kAllLanes = 0xffff;

[[gnu::always_inline]] inline Floats halves_to_floats(const std::byte* from) {
  __m256i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return _mm512_maskz_cvtph_ps(kAllLanes, halves);
}

[[gnu::always_inline]] inline void floats_to_halves(std::byte* to, Floats floats) {
  const __m256i halves =
      _mm512_maskz_cvtps_ph(kAllLanes, floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(to, &halves, sizeof(halves));
}

[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  __m256i shorts;
  __builtin_memcpy(&shorts, from, sizeof(shorts));
  return __builtin_bit_cast(Words, _mm512_maskz_cvtepu16_epi32(kAllLanes, shorts));
}

[[gnu::always_inline]] inline void store_words(std::byte* to, Words words) {
  const __m256i shorts = _mm512_maskz_cvtepi32_epi16(kAllLanes, __builtin_bit_cast(__m512i, words));
  __builtin_memcpy(to, &shorts, sizeof(shorts));
}

#include "lightcc/collectives/kernels/reduce_body.inl"

}  // namespace

void detail::reduce_avx512(const ReduceJob& job) {
  run_job(job);
}

}  // namespace lightcc

#endif
