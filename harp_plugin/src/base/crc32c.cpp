#include "base/crc32c.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

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

constexpr std::size_t kMostLaneWords = 4096;
constexpr std::size_t kLeastLaneWords = 8;

/// x^(64 i - 33) modulo the polynomial, bits reversed: a carry-less product with it, reduced by one
/// more CRC instruction, moves a CRC over i words (Gopal et al., "Fast CRC Computation for iSCSI
/// Polynomial Using CRC32 Instruction", Intel 2011).
std::array<std::uint32_t, kMostLaneWords + 1> make_shifts() {
  std::array<std::uint32_t, kMostLaneWords + 1> shifts{};
  std::uint32_t power = 0x80000000;  // x^0
  for (std::size_t exponent = 1; exponent <= 64 * kMostLaneWords - 33; ++exponent) {
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
  static const auto kShifts = make_shifts();
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

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {  // hot
  static const bool kHasLanes = __builtin_cpu_supports("pclmul");
  std::uint64_t crc = ~std::uint32_t{0};
  while (kHasLanes && bytes.size() >= 24 * kLeastLaneWords) {
    const std::size_t lane_words = std::min(bytes.size() / 24, kMostLaneWords);
    crc = crc_of_lanes(crc, bytes.data(), lane_words);
    bytes = bytes.subspan(24 * lane_words);
  }
  crc = crc_of_words(crc, bytes.data(), bytes.size() / 8);
  auto narrow = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes.subspan(bytes.size() / 8 * 8)) {
    narrow = _mm_crc32_u8(narrow, static_cast<std::uint8_t>(byte));
  }
  return ~narrow;
}
#else
std::uint32_t crc32c(std::span<const std::byte> bytes) {
  return crc32c_by_table(bytes);
}
#endif

}  // namespace harp
