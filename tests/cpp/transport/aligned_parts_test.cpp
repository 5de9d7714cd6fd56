#include "lightcc/transport/plugin/aligned_parts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::aligned_parts_test {
namespace {

TEST(AlignedParts, show_every_byte_in_order_wherever_it_begins) {
  std::vector<std::uint64_t> memory(1200);
  const auto all = std::as_writable_bytes(std::span(memory));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  for (std::size_t shift = 0; shift < 9; ++shift) {
    for (const std::size_t size : {0UL, 1UL, 8UL, 1408UL, 2048UL, 2049UL, 8384UL}) {
      const auto bytes = std::span<const std::byte>(all).subspan(shift, size);
      std::size_t seen = 0;
      for_each_aligned_part(bytes, [&](std::size_t at, std::span<const std::byte> part) {
        EXPECT_EQ(at, seen);
        EXPECT_EQ(at % 64, 0U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data()) % kElementAlignment, 0U);
        EXPECT_TRUE(std::ranges::equal(part, bytes.subspan(at, part.size())));
        EXPECT_EQ(part.data() == bytes.data(), shift % kElementAlignment == 0);
        seen += part.size();
      });
      EXPECT_EQ(seen, size);
    }
  }
}

}  // namespace
}  // namespace lightcc::aligned_parts_test
