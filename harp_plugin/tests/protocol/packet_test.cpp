#include "protocol/packet.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"

namespace harp::packet_test {
namespace {

Header sample() {
  return {.type = PacketType::kData,
          .flags = flag::kLast | flag::kCrc,
          .path = 0x0021,
          .dst_cid = 0x44332211,
          .psn = 0x88776655,
          .path_seq = 0x0c0b0a09,
          .msg_seq = 0x100f0e0d,
          .msg_off = 0x14131240,
          .len = 3,
          .tag = 0x1615,
          .tx_time = 0x1a191817,
          .auth = 0x2827262524232221};
}

std::vector<std::byte> packet_of(const Header& header, std::size_t body_bytes) {
  std::vector<std::byte> packet(kHeaderBytes + body_bytes);
  encode_header(header, packet);
  return packet;
}

TEST(Packet, header_bytes_are_those_of_the_table) {
  const auto packet = packet_of(sample(), 3);
  const std::array<unsigned, kHeaderBytes> golden{
      0x11, 0x11, 0x21, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x09, 0x0a,
      0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x40, 0x12, 0x13, 0x14, 0x03, 0x00, 0x15, 0x16,
      0x17, 0x18, 0x19, 0x1a, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
  for (std::size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(static_cast<unsigned>(packet[i]), golden[i]) << "offset " << i;
  }
}

TEST(Packet, what_was_encoded_is_parsed) {
  const Header sent = sample();
  const auto packet = packet_of(sent, 3);
  const auto view = parse_packet(packet);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->header.type, sent.type);
  EXPECT_EQ(view->header.flags, sent.flags);
  EXPECT_EQ(view->header.path, sent.path);
  EXPECT_EQ(view->header.dst_cid, sent.dst_cid);
  EXPECT_EQ(view->header.psn, sent.psn);
  EXPECT_EQ(view->header.path_seq, sent.path_seq);
  EXPECT_EQ(view->header.msg_seq, sent.msg_seq);
  EXPECT_EQ(view->header.msg_off, sent.msg_off);
  EXPECT_EQ(view->header.tag, sent.tag);
  EXPECT_EQ(view->header.tx_time, sent.tx_time);
  EXPECT_EQ(view->header.auth, sent.auth);
  EXPECT_EQ(view->covered.size(), kAuthenticatedHeaderBytes);
  EXPECT_EQ(view->body.data(), packet.data() + kHeaderBytes);
  EXPECT_EQ(view->body.size(), 3U);
}

TEST(Packet, a_truncated_packet_is_refused) {
  const auto packet = packet_of(sample(), 3);
  for (std::size_t length = 0; length < packet.size(); ++length) {
    EXPECT_FALSE(parse_packet(std::span(packet).first(length))) << length;
  }
}

TEST(Packet, what_follows_the_body_is_padding) {
  for (unsigned type = 1; type <= 10; ++type) {
    Header header = sample();
    header.type = static_cast<PacketType>(type);
    const auto packet = packet_of(header, 64);
    const auto view = parse_packet(packet);
    ASSERT_TRUE(view) << type;
    EXPECT_EQ(view->body.data(), packet.data() + kHeaderBytes);
    EXPECT_EQ(view->body.size(), header.len);
  }
}

TEST(Packet, unknown_versions_types_flags_and_paths_are_refused) {
  const auto good = packet_of(sample(), 3);
  const auto with = [&good](std::size_t offset, unsigned value) {
    auto packet = good;
    packet[offset] = static_cast<std::byte>(value);
    return parse_packet(packet).has_value();
  };
  EXPECT_TRUE(with(0, 0x11));
  EXPECT_FALSE(with(0, 0x21));
  EXPECT_FALSE(with(0, 0x10));
  EXPECT_FALSE(with(0, 0x1b));
  EXPECT_FALSE(with(1, 0x20));
  EXPECT_FALSE(with(2, kMaxPaths));
  EXPECT_TRUE(with(2, kMaxPaths - 1));
}

TEST(Packet, a_million_random_packets_are_parsed_without_harm) {
  Rng rng(7);
  std::array<std::byte, 96> bytes{};
  std::size_t parsed = 0;
  for (int round = 0; round < 1000000; ++round) {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      const std::uint64_t word = rng();
      std::memcpy(bytes.data() + i, &word, sizeof(word));
    }
    const std::size_t length = rng.below(bytes.size() + 1);
    bytes[0] = static_cast<std::byte>(0x10 | (round & 15));
    bytes[3] = std::byte{0};
    if (rng.chance(0.9)) {
      bytes[24] = static_cast<std::byte>(length - kHeaderBytes);
      bytes[25] = std::byte{0};
    }
    const auto view = parse_packet(std::span(bytes).first(length));
    parsed += view ? 1 : 0;
  }
  EXPECT_GT(parsed, 0U);
}

}  // namespace
}  // namespace harp::packet_test
