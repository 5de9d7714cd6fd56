#include "base/siphash.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace harp::siphash_test {
namespace {

Key counting_key() {
  Key key{};
  for (std::size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<std::byte>(i);
  }
  return key;
}

std::vector<std::byte> counting(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(i);
  }
  return bytes;
}

TEST(SipHash, agrees_with_the_vector_of_the_paper) {
  // Appendix A of the paper: key 00..0f, message 00..0e.
  EXPECT_EQ(siphash(counting_key(), counting(15)), 0xa129ca6149be45e5U);
}

TEST(SipHash, agrees_with_the_vectors_of_the_reference_for_the_lengths_around_a_word) {
  EXPECT_EQ(siphash(counting_key(), counting(0)), 0x726fdb47dd0e0e31U);
  EXPECT_EQ(siphash(counting_key(), counting(1)), 0x74f839c593dc67fdU);
  EXPECT_EQ(siphash(counting_key(), counting(7)), 0xab0200f58b01d137U);
  EXPECT_EQ(siphash(counting_key(), counting(8)), 0x93f5f5799a932462U);
}

TEST(SipHash, two_pieces_give_what_the_whole_gives) {
  const auto bytes = counting(61);
  const auto all = std::span<const std::byte>(bytes);
  const std::uint64_t whole = siphash(counting_key(), all);
  for (std::size_t cut = 0; cut <= all.size(); cut += 8) {
    EXPECT_EQ(siphash(counting_key(), all.first(cut), all.subspan(cut)), whole) << cut;
  }
}

TEST(SipHash, every_bit_of_key_and_message_matters) {
  const auto message = counting(36);
  const std::uint64_t before = siphash(counting_key(), message);
  for (std::size_t bit = 0; bit < 128; ++bit) {
    Key key = counting_key();
    key[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(siphash(key, message), before) << bit;
  }
  for (std::size_t bit = 0; bit < message.size() * 8; ++bit) {
    auto changed = message;
    changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(siphash(counting_key(), changed), before) << bit;
  }
}

}  // namespace
}  // namespace harp::siphash_test
