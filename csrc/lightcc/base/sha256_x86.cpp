// SHA-256 by the instructions of x86-64 (Intel SDM volume 2: SHA256RNDS2, SHA256MSG1, SHA256MSG2).
//
// They keep the eight words of the state in two registers, as a, b, e, f and c, d, g, h from the
// highest lane down, and work through two rounds each.
#include "lightcc/base/sha256_blocks.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include "lightcc/base/cpu.hpp"
#endif

namespace lightcc {

#if defined(__x86_64__)
namespace {

__m128i load(const void* at) {
  return _mm_loadu_si128(static_cast<const __m128i*>(at));
}

// NOLINTBEGIN(portability-simd-intrinsics): others here have no portable form either.
[[gnu::target("sha,sse4.1")]] void compress_by_instructions(Sha256State& state,
                                                            const std::byte* blocks,
                                                            std::size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i badc = _mm_shuffle_epi32(load(state.data()), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(load(state.data() + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(badc, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, badc, 0xf0);
  for (std::size_t block = 0; block < count; ++block) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    // The last 16 words of the schedule, four in each.
    __m128i w[4] = {};  // NOLINT(modernize-avoid-c-arrays): std::array would lose the alignment.
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) {
      __m128i& words = w[i % 4];
      const __m128i last = w[(i + 3) % 4];
      if (i < 4) {
        words = _mm_shuffle_epi8(load(blocks + block * kSha256BlockBytes + 16 * i), big_endian);
      } else {
        const __m128i seven_ago = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(words, w[(i + 1) % 4]), seven_ago);
        words = _mm_sha256msg2_epu32(sum, last);
      }
      const __m128i added = _mm_add_epi32(words, load(kSha256Constants.data() + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  auto* const out = reinterpret_cast<__m128i*>(state.data());
  _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}

// NOLINTEND(portability-simd-intrinsics)

}  // namespace

Sha256Compress sha256_compress_x86() {
  static const bool kHasSha = detect_cpu_features().sha;
  return kHasSha ? &compress_by_instructions : nullptr;
}
#else
Sha256Compress sha256_compress_x86() {
  return nullptr;
}
#endif

}  // namespace lightcc
