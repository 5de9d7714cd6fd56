// A hello has its golden bytes, and nothing else is taken for one.
#include "lightcc/transport/channel/channel_hello.hpp"

#include <cstring>
#include <functional>
#include <span>

#include <gtest/gtest.h>

namespace lightcc::channel_hello_test {
namespace {

constexpr std::uint32_t kMagic = 0x31544554;  // "TET1"

ChannelHello make_hello(std::uint16_t index = 5, std::uint16_t count = 16) {
  return {.world_id = 0x1112131415161718,
          .attempt = 9,
          .channel = {.source = 1, .destination = 2, .process_set = 3, .lane = 4},
          .index = index,
          .count = count};
}

Bytes encoded(const ChannelHello& hello) {
  Bytes out;
  ByteWriter writer(out);
  encode_channel_hello(hello, kMagic, writer);
  return out;
}

Result<ChannelHello> decoded(std::span<const std::byte> in, std::uint32_t magic = kMagic) {
  ByteReader reader(in);
  return decode_channel_hello(reader, magic);
}

TEST(ChannelHelloTest, comes_back_and_leaves_what_the_transport_adds) {
  Bytes bytes = encoded(make_hello());
  EXPECT_EQ(bytes.size(), kChannelHelloBytes);
  bytes.push_back(std::byte{7});
  ByteReader reader(bytes);
  const auto back = decode_channel_hello(reader, kMagic);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, make_hello());
  EXPECT_EQ(reader.remaining(), 1U);
}

TEST(ChannelHelloTest, every_truncation_and_another_transports_magic_are_refused) {
  const Bytes bytes = encoded(make_hello());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(decoded(std::span(bytes).first(length)).status().code(), ErrorCode::kPeerFailed);
  }
  EXPECT_FALSE(decoded(bytes, kMagic + 1).ok());
}

TEST(ChannelHelloTest, another_version_and_what_must_be_zero_are_refused) {
  for (const std::size_t at : {4U, 5U, 10U, 11U}) {
    Bytes bytes = encoded(make_hello());
    bytes[at] ^= std::byte{2};
    EXPECT_NE(decoded(bytes).status().message().find("version"), std::string::npos) << at;
  }
}

TEST(ChannelHelloTest, an_impossible_index_or_count_is_refused) {
  for (const auto& [index, count] : {std::pair{0, 0}, {0, 17}, {2, 2}, {65535, 3}}) {
    const auto hello =
        make_hello(static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(count));
    EXPECT_NE(decoded(encoded(hello)).status().message().find("impossible"), std::string::npos)
        << index << " of " << count;
  }
  EXPECT_TRUE(decoded(encoded(make_hello(15, kMaxConnections))).ok());
}

}  // namespace
}  // namespace lightcc::channel_hello_test
