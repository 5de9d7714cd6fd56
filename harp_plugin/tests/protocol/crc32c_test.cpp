#include "base/crc32c.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"

namespace harp::crc32c_test {
namespace {

TEST(Crc32c, agrees_with_the_vectors_of_rfc_3720) {
  std::array<std::byte, 32> bytes{};
  EXPECT_EQ(crc32c(bytes), 0x8a9136aaU);
  bytes.fill(std::byte{0xff});
  EXPECT_EQ(crc32c(bytes), 0x62a8ab43U);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i);
  }
  EXPECT_EQ(crc32c(bytes), 0x46dd794eU);
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283U);
}

TEST(Crc32c, every_kernel_agrees_with_the_table_at_every_length_and_alignment) {
  Rng rng(1);
  std::vector<std::byte> bytes(800);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(rng());
  }
  for (std::size_t first = 0; first < 5; ++first) {
    for (std::size_t count = 0; count < 780; ++count) {
      const auto piece = std::span<const std::byte>(bytes).subspan(first, count);
      const std::uint32_t expected = crc32c_by_table(piece);
      for (const Crc32cKernel& kernel : crc32c_kernels()) {
        ASSERT_EQ(kernel.checksum(piece), expected) << kernel.name << " " << first << " " << count;
      }
    }
  }
}

TEST(Crc32c, every_kernel_agrees_with_the_table_on_long_payloads) {
  Rng rng(2);
  std::vector<std::byte> bytes(200000);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(rng());
  }
  const auto compare = [&](std::size_t first, std::size_t count) {
    const auto piece = std::span<const std::byte>(bytes).subspan(first, count);
    const std::uint32_t expected = crc32c_by_table(piece);
    for (const Crc32cKernel& kernel : crc32c_kernels()) {
      ASSERT_EQ(kernel.checksum(piece), expected) << kernel.name << " " << first << " " << count;
    }
  };
  constexpr std::size_t kCounts[] = {
      1152, 1408, 3392, 8384, 8896, 65408, 98303, 98304, 98305, 199000};
  for (const std::size_t count : kCounts) {
    compare(3, count);
  }
  for (int i = 0; i < 500; ++i) {
    compare(rng.below(64), rng.below(9000));
  }
}

}  // namespace
}  // namespace harp::crc32c_test
