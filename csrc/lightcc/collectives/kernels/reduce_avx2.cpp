// Reductions with AVX2 and F16C. Compiled with flags of its own: see reduce_job.hpp for what must
// not be done here.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>  // IWYU pragma: keep (for the lanes of vectors)

#include "lightcc/collectives/kernels/reduce_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 32;
using Floats [[gnu::vector_size(kVectorBytes)]] = float;
using Words [[gnu::vector_size(kVectorBytes)]] = std::int32_t;

[[gnu::always_inline]] inline Floats halves_to_floats(const std::byte* from) {
  __m128i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return _mm256_cvtph_ps(halves);
}

[[gnu::always_inline]] inline void floats_to_halves(std::byte* to, Floats floats) {
  const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(to, &halves, sizeof(halves));
}

[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  __m128i shorts;
  __builtin_memcpy(&shorts, from, sizeof(shorts));
  return __builtin_bit_cast(Words, _mm256_cvtepu16_epi32(shorts));
}

[[gnu::always_inline]] inline void store_words(std::byte* to, Words words) {
  const auto wide = __builtin_bit_cast(__m256i, words);
  const __m128i shorts =
      _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  __builtin_memcpy(to, &shorts, sizeof(shorts));
}

#include "lightcc/collectives/kernels/reduce_body.inl"

}  // namespace

void detail::reduce_avx2(const ReduceJob& job) {
  run_job(job);
}

}  // namespace lightcc

#endif
