#include "base/crc32c.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#ifdef __SSE4_2__
#include <immintrin.h>
#endif

namespace harp {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, bits reversed.

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t value = 0; value < table.size(); ++value) {
    std::uint32_t crc = value;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[value] = crc;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

#ifdef __SSE4_2__
namespace {

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

std::uint64_t crc_of_words(std::uint64_t crc, const std::byte* at, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) {
    crc = _mm_crc32_u64(crc, word_at(at + 8 * i));
  }
  return crc;
}

constexpr std::size_t kMaxLaneWords = 4096;
constexpr std::size_t kMinLaneWords = 8;

/// x^(64 i - 33) modulo the polynomial for each i from 1 on, bits reversed: a carry-less product
/// with it, reduced by one more CRC instruction, moves a CRC over i words (Gopal et al., "Fast CRC
/// Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011).
template <std::size_t Words>
constexpr std::array<std::uint32_t, Words + 1> make_shifts() {
  std::array<std::uint32_t, Words + 1> shifts{};
  std::uint32_t power = 0x80000000;  // x^0
  for (std::size_t exponent = 1; exponent <= 64 * Words - 33; ++exponent) {
    power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
    if ((exponent + 33) % 64 == 0) {
      shifts[(exponent + 33) / 64] = power;
    }
  }
  return shifts;
}

[[gnu::target("pclmul")]] std::uint64_t shift(std::uint64_t crc, std::uint32_t by) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<std::int64_t>(crc)),
                                               _mm_cvtsi32_si128(static_cast<int>(by)),
                                               0);
  return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

/// The instruction takes three cycles and one can begin in each: three lanes keep it busy.
[[gnu::target("pclmul")]] std::uint64_t crc_of_lanes(std::uint64_t crc,
                                                     const std::byte* at,
                                                     std::size_t lane_words) {
  static const auto kShifts = make_shifts<kMaxLaneWords>();
  std::uint64_t second = 0;
  std::uint64_t third = 0;
  const std::byte* const at_second = at + 8 * lane_words;
  const std::byte* const at_third = at_second + 8 * lane_words;
  for (std::size_t i = 0; i < 8 * lane_words; i += 8) {
    crc = _mm_crc32_u64(crc, word_at(at + i));
    second = _mm_crc32_u64(second, word_at(at_second + i));
    third = _mm_crc32_u64(third, word_at(at_third + i));
  }
  crc = shift(crc, kShifts[lane_words]) ^ second;
  return shift(crc, kShifts[lane_words]) ^ third;
}

/// The CRC register after `bytes`, of which there are a few; inverted.
std::uint32_t finish(std::uint64_t crc, std::span<const std::byte> bytes) {
  crc = crc_of_words(crc, bytes.data(), bytes.size() / 8);
  auto narrow = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes.subspan(bytes.size() / 8 * 8)) {
    narrow = _mm_crc32_u8(narrow, static_cast<std::uint8_t>(byte));
  }
  return ~narrow;
}

std::uint32_t crc32c_by_instruction(std::span<const std::byte> bytes) {
  return finish(~std::uint32_t{0}, bytes);
}

std::uint32_t crc32c_by_lanes(std::span<const std::byte> bytes) {  // hot
  std::uint64_t crc = ~std::uint32_t{0};
  while (bytes.size() >= 24 * kMinLaneWords) {
    const std::size_t lane_words = std::min(bytes.size() / 24, kMaxLaneWords);
    crc = crc_of_lanes(crc, bytes.data(), lane_words);
    bytes = bytes.subspan(24 * lane_words);
  }
  return finish(crc, bytes);
}

// --- 64 bytes at a time
// ---------------------------------------------------------------------------

// A block of 16 bytes is a polynomial. Folding multiplies it by a power of x, modulo the CRC's, so
// that it can be added to a block further on. Four registers of four blocks keep the multiplier
// busy; what they hold in the end has the CRC of everything before.
#define HARP_WIDE gnu::target("avx512f,vpclmulqdq,pclmul")

constexpr std::size_t kWideBytes = 64;
constexpr std::size_t kWideRegisters = 4;

/// Factors for the two words of a block that is to move over `bytes`.
struct Factors {
  std::int64_t first;
  std::int64_t second;
};

template <std::size_t Bytes>
constexpr Factors factors_for() {
  constexpr auto kShifts = make_shifts<Bytes / 8 + 1>();
  return {.first = kShifts[Bytes / 8 + 1], .second = kShifts[Bytes / 8]};
}

[[HARP_WIDE]] inline __m512i load(const std::byte* at) {
  return _mm512_loadu_si512(at);
}

/// The same factors for all four blocks of a register.
template <std::size_t Bytes>
[[HARP_WIDE]] inline __m512i equal_factors() {
  constexpr Factors kBy = factors_for<Bytes>();
  return _mm512_set4_epi64(kBy.second, kBy.first, kBy.second, kBy.first);
}

[[HARP_WIDE]] inline __m512i folded(__m512i blocks, __m512i factors, __m512i onto) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(blocks, factors, 0x00),
                                   _mm512_clmulepi64_epi128(blocks, factors, 0x11),
                                   onto,
                                   kXorOfThree);
}

/// The CRC register after the four blocks of `blocks` alone.
[[HARP_WIDE]] inline std::uint64_t crc_of_blocks(__m512i blocks) {
  constexpr Factors kFirst = factors_for<48>();
  constexpr Factors kSecond = factors_for<32>();
  constexpr Factors kThird = factors_for<16>();
  const __m512i factors = _mm512_set_epi64(0,
                                           0,
                                           kThird.second,
                                           kThird.first,
                                           kSecond.second,
                                           kSecond.first,
                                           kFirst.second,
                                           kFirst.first);
  constexpr int kLastBlock = 0xc0;
  const __m512i last = _mm512_maskz_mov_epi64(kLastBlock, blocks);
  std::array<std::uint64_t, 8> words{};
  _mm512_storeu_si512(words.data(), folded(blocks, factors, last));
  const std::uint64_t low = words[0] ^ words[2] ^ words[4] ^ words[6];
  const std::uint64_t high = words[1] ^ words[3] ^ words[5] ^ words[7];
  return _mm_crc32_u64(_mm_crc32_u64(0, low), high);
}

[[HARP_WIDE]] std::uint32_t crc32c_by_wide_products(std::span<const std::byte> bytes) {  // hot
  if (bytes.size() < kWideBytes) {
    return finish(~std::uint32_t{0}, bytes);
  }
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size() / kWideBytes * kWideBytes;
  const __m512i by_one = equal_factors<kWideBytes>();
  // The register's first value is added to the first bytes.
  __m512i sum = _mm512_xor_si512(load(at), _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
  at += kWideBytes;
  if (static_cast<std::size_t>(end - at) >= (2 * kWideRegisters - 1) * kWideBytes) {
    const __m512i by_all = equal_factors<kWideRegisters * kWideBytes>();
    __m512i second = load(at);
    __m512i third = load(at + kWideBytes);
    __m512i fourth = load(at + 2 * kWideBytes);
    at += (kWideRegisters - 1) * kWideBytes;
    for (; static_cast<std::size_t>(end - at) >= kWideRegisters * kWideBytes;
         at += kWideRegisters * kWideBytes) {
      sum = folded(sum, by_all, load(at));
      second = folded(second, by_all, load(at + kWideBytes));
      third = folded(third, by_all, load(at + 2 * kWideBytes));
      fourth = folded(fourth, by_all, load(at + 3 * kWideBytes));
    }
    sum = folded(folded(folded(sum, by_one, second), by_one, third), by_one, fourth);
  }
  for (; at != end; at += kWideBytes) {
    sum = folded(sum, by_one, load(at));
  }
  return finish(crc_of_blocks(sum), bytes.subspan(static_cast<std::size_t>(end - bytes.data())));
}

std::vector<Crc32cKernel> make_kernels() {
  std::vector<Crc32cKernel> kernels;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
    kernels.push_back({.name = "wide products", .checksum = crc32c_by_wide_products});
  }
  if (__builtin_cpu_supports("pclmul")) {
    kernels.push_back({.name = "three lanes", .checksum = crc32c_by_lanes});
  }
  kernels.push_back({.name = "instruction", .checksum = crc32c_by_instruction});
  kernels.push_back({.name = "table", .checksum = crc32c_by_table});
  return kernels;
}

}  // namespace

bool crc32c_is_fast() {
  return true;
}
#else
namespace {

std::vector<Crc32cKernel> make_kernels() {
  return {{.name = "table", .checksum = crc32c_by_table}};
}

}  // namespace

bool crc32c_is_fast() {
  return false;
}
#endif

std::span<const Crc32cKernel> crc32c_kernels() {
  static const std::vector<Crc32cKernel> kKernels = make_kernels();
  return kKernels;
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {  // hot
  static const auto kFastest = crc32c_kernels().front().checksum;
  return kFastest(bytes);
}

}  // namespace harp
