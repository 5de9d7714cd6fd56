// The TCP transport's wire format: golden bytes in both directions, hostile bytes, big numbers.
#include "lightcc/transport/tcp/tcp_frame.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "doubles/shorthand.hpp"

namespace lightcc::tcp_frame_test {
namespace {

constexpr std::uint64_t kS = kStripeBytes;

StripeHeaderBytes header_from_hex(const std::string& hex) {
  const Bytes bytes = from_hex(hex);
  StripeHeaderBytes out{};
  EXPECT_EQ(bytes.size(), out.size());
  std::ranges::copy(bytes, out.begin());
  return out;
}

StripeHeaderBytes encoded(const StripeHeader& header) {
  StripeHeaderBytes out;
  encode_stripe_header(header, out);
  return out;
}

ChannelHello make_hello(std::uint16_t index, std::uint16_t count) {
  ChannelHello hello;
  hello.index = index;
  hello.count = count;
  return hello;
}

TEST(TcpFrameTest, stripe_header_has_its_golden_bytes) {
  const StripeHeader header{0x0102030405060708, 2 * kS, 2 * kS + 5, 5};
  const auto golden =
      header_from_hex("4c435331 05000000 0807060504030201 0000080000000000 0500080000000000");
  EXPECT_EQ(encoded(header), golden);
  auto decoded = decode_stripe_header(golden);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, header);
}

TEST(TcpFrameTest, hello_has_its_golden_bytes) {
  const ChannelHello hello{.world_id = 0x1112131415161718,
                           .attempt = 9,
                           .channel = {1, 2, 3, 4},
                           .index = 5,
                           .count = 16};
  const Bytes golden = from_hex(
      "4c434831 0100 1000 0500 0000 1817161514131211 0900000000000000"
      "01000000 02000000 03000000 04000000");
  EXPECT_EQ(encode_tcp_hello(hello), golden);
  auto decoded = decode_tcp_hello(golden);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, hello);
}

TEST(TcpFrameTest, handles_of_both_ip_versions_have_their_golden_bytes) {
  const struct {
    const char* address;
    const char* hex;
  } kCases[] = {
      {"127.0.0.1:4660", "01 04 3412 0700000000000000 7f000001"},
      {"[::1]:4660", "01 06 3412 0700000000000000 00000000000000000000000000000001"},
  };
  for (const auto& test : kCases) {
    auto address = SocketAddress::resolve(test.address);
    ASSERT_TRUE(address.ok());
    auto handle = encode_tcp_handle({7, *address});
    ASSERT_TRUE(handle.ok());
    EXPECT_EQ(*handle, from_hex(test.hex));
    auto decoded = decode_tcp_handle(*handle);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->world_id, 7U);
    EXPECT_EQ(decoded->address.to_string(), test.address);
  }
}

TEST(TcpFrameTest, handle_of_a_unix_socket_cannot_be_made) {
  const auto handle = encode_tcp_handle({1, SocketAddress::abstract_unix("x")});
  EXPECT_EQ(handle.status().code(), ErrorCode::kInvalidArgument);
}

TEST(TcpFrameTest, every_truncation_and_every_extension_is_refused) {
  auto address = SocketAddress::resolve("127.0.0.1:1");
  ASSERT_TRUE(address.ok());
  const Bytes hello = encode_tcp_hello(make_hello(0, 1));
  auto handle = encode_tcp_handle({1, *address});
  ASSERT_TRUE(handle.ok());
  for (std::size_t length = 0; length < hello.size(); ++length) {
    EXPECT_FALSE(decode_tcp_hello(std::span(hello).first(length)).ok()) << length;
  }
  for (std::size_t length = 0; length < handle->size(); ++length) {
    EXPECT_FALSE(decode_tcp_handle(std::span(*handle).first(length)).ok()) << length;
  }
  Bytes longer = hello;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_tcp_hello(longer).ok());
  longer = *handle;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_tcp_handle(longer).ok());
}

TEST(TcpFrameTest, hello_with_an_impossible_index_or_count_is_refused) {
  EXPECT_FALSE(decode_tcp_hello(encode_tcp_hello(make_hello(0, 0))).ok());
  EXPECT_FALSE(decode_tcp_hello(encode_tcp_hello(make_hello(0, 17))).ok());
  EXPECT_FALSE(decode_tcp_hello(encode_tcp_hello(make_hello(2, 2))).ok());
}

TEST(TcpFrameTest, handle_of_another_version_or_kind_or_without_port_is_refused) {
  const char* const kBad[] = {"02 04 3412 0700000000000000 7f000001",
                              "01 05 3412 0700000000000000 7f000001",
                              "01 06 3412 0700000000000000 7f000001",
                              "01 04 0000 0700000000000000 7f000001"};
  for (const char* hex : kBad) {
    EXPECT_EQ(decode_tcp_handle(from_hex(hex)).status().code(), ErrorCode::kInvalidArgument) << hex;
  }
}

TEST(TcpFrameTest, only_stripes_of_the_fixed_cut_are_accepted) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const auto u32 = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const StripeHeader kGood[] = {{0, 0, 0, 0},
                                {0, 0, 1, 1},
                                {0, 0, kS, u32(kS)},
                                {0, kS, kS + 1, 1},
                                {kMax, kMax / kS * kS, kMax, u32(kMax % kS)}};
  const StripeHeader kBad[] = {{0, 0, 0, 1},                 // Payload of an empty message.
                               {0, kS, 0, 0},                // A second stripe of it.
                               {0, kS, kS, 0},               // An empty stripe at the end.
                               {0, 64, 2 * kS, u32(kS)},     // Not on the grid.
                               {0, 0, 2 * kS, u32(kS - 1)},  // Too short for a middle.
                               {0, 0, 2 * kS, u32(kS + 1)},
                               {0, kS, kS + 1, 2},        // Beyond the end.
                               {0, 3 * kS, kS, u32(kS)},  // Starts beyond the end.
                               {0, kMax / kS * kS, kS, u32(kS)}};
  for (const StripeHeader& header : kGood) {
    EXPECT_TRUE(decode_stripe_header(encoded(header)).ok()) << header.offset << " " << header.total;
  }
  for (const StripeHeader& header : kBad) {
    EXPECT_EQ(decode_stripe_header(encoded(header)).status().code(), ErrorCode::kPeerFailed)
        << header.offset << " " << header.total << " " << header.length;
  }
  StripeHeaderBytes wrong_magic = encoded({0, 0, 1, 1});
  wrong_magic[0] = std::byte{0};
  EXPECT_FALSE(decode_stripe_header(wrong_magic).ok());
}

TEST(TcpFrameTest, the_cut_covers_every_byte_beyond_four_gigabytes) {
  const std::uint64_t total = (std::uint64_t{1} << 33) + 77;
  std::uint64_t covered = 0;
  std::uint64_t stripes = 0;
  while (covered < total) {
    const auto length = static_cast<std::uint32_t>(kStripeCut.length(total, covered));
    ASSERT_TRUE(decode_stripe_header(encoded({3, covered, total, length})).ok()) << covered;
    covered += length;
    ++stripes;
  }
  EXPECT_EQ(covered, total);
  EXPECT_EQ(stripes, kStripeCut.count(total));
  EXPECT_EQ(message_wire_bytes(total), total + stripes * 32);
  EXPECT_EQ(message_wire_bytes(0), 32U);
}

}  // namespace
}  // namespace lightcc::tcp_frame_test
