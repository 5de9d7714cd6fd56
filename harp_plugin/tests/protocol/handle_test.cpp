#include "protocol/handle.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <gtest/gtest.h>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"

namespace harp::handle_test {
namespace {

ConnectHandle sample() {
  ConnectHandle handle{.family = 4,
                       .port = 9000,
                       .listen_id = 0x0102030405060708,
                       .paths = 8,
                       .mtu_bytes = 1500,
                       .features = 1};
  handle.address[0] = std::byte{10};
  handle.secret[15] = std::byte{99};
  return handle;
}

TEST(Handle, is_parsed_as_it_was_encoded_also_with_bytes_behind_it) {
  const auto bytes = encode_handle(sample());
  EXPECT_EQ(parse_handle(bytes), sample());
  std::array<std::byte, 128> slot{};
  std::copy(bytes.begin(), bytes.end(), slot.begin());
  EXPECT_EQ(parse_handle(slot), sample());
}

TEST(Handle, no_flipped_bit_and_no_missing_byte_is_accepted) {
  const auto bytes = encode_handle(sample());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto changed = bytes;
    changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(parse_handle(changed)) << bit;
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_handle(std::span(bytes).first(length))) << length;
  }
}

TEST(Handle, families_and_path_counts_out_of_range_are_refused) {
  ConnectHandle handle = sample();
  handle.family = 5;
  EXPECT_FALSE(parse_handle(encode_handle(handle)));
  handle = sample();
  handle.paths = 0;
  EXPECT_FALSE(parse_handle(encode_handle(handle)));
  handle.paths = kMaxPaths + 1;
  EXPECT_FALSE(parse_handle(encode_handle(handle)));
}

}  // namespace
}  // namespace harp::handle_test
