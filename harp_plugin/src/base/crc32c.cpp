#include "base/crc32c.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#ifdef __SSE4_2__
#include <nmmintrin.h>
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
std::uint32_t crc32c(std::span<const std::byte> bytes) {
  std::uint64_t crc = ~std::uint32_t{0};
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    crc = _mm_crc32_u64(crc, word);
    bytes = bytes.subspan(8);
  }
  auto narrow = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes) {
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
