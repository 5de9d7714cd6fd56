// Ethernet, IP and UDP headers.
#include "datapath/frame.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "datapath/address.hpp"
#include "datapath/packets.hpp"

namespace harp::frame_test {
namespace {

constexpr std::array<std::uint16_t, 2> kFamilies{4, 6};

PacketBytes bytes_of(std::string_view hex) {
  PacketBytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

FrameFlow flow(std::uint16_t family) {
  FrameFlow made;
  made.source_mac = {std::byte{2}, {}, {}, {}, {}, std::byte{1}};
  made.destination_mac = {std::byte{2}, {}, {}, {}, {}, std::byte{2}};
  made.source = {.ip = {}, .family = family, .port = 40000};
  made.destination = {.ip = {}, .family = family, .port = 4791};
  for (std::size_t i = 0; i < (family == 4 ? 4U : 16U); ++i) {
    made.source.ip[i] = static_cast<std::byte>(i + 10);
    made.destination.ip[i] = static_cast<std::byte>(i + 100);
  }
  return made;
}

PacketBytes frame_with(const FrameFlow& to, std::span<const std::byte> payload) {
  const std::size_t header = frame_header_bytes(to.source.family);
  PacketBytes frame(header + payload.size());
  std::ranges::copy(payload, frame.begin() + static_cast<std::ptrdiff_t>(header));
  write_frame_headers(to, frame);
  return frame;
}

TEST(Frame, what_is_written_is_read_in_both_families_and_all_sizes) {
  Rng rng(1);
  for (const std::uint16_t family : kFamilies) {
    for (std::size_t size = 0; size < 9000; size += 1 + rng.below(97)) {
      const PacketBytes payload = pattern(size, size);
      const PacketBytes frame = frame_with(flow(family), payload);
      const auto view = parse_frame(frame);
      ASSERT_TRUE(view) << family << " " << size;
      EXPECT_EQ(view->source(), flow(family).source);
      EXPECT_EQ(view->destination(), flow(family).destination);
      EXPECT_TRUE(std::ranges::equal(view->payload, payload));
    }
  }
}

TEST(Frame, an_ipv4_header_has_the_bytes_of_rfc_791) {
  const PacketBytes frame = frame_with(flow(4), pattern(4, 1));
  const auto header = std::span(frame).first(42);
  const PacketBytes expected = bytes_of(
      "020000000002"
      "020000000001"
      "0800"
      "45000020000040004011"
      "59e9"
      "0a0b0c0d"
      "64656667"
      "9c40"
      "12b7"
      "000c"
      "0000");
  EXPECT_TRUE(std::ranges::equal(header, expected));
}

TEST(Frame, a_nic_that_completes_the_udp_checksum_gets_the_pseudo_headers_sum) {
  FrameFlow to = flow(4);
  to.sum_by_nic = true;
  PacketBytes frame = frame_with(to, pattern(4, 1));
  // 0a0b + 0c0d + 6465 + 6667 + 0011 + 000c, as RFC 768 has it.
  EXPECT_EQ(frame[40], std::byte{0xe1});
  EXPECT_EQ(frame[41], std::byte{0x01});
  EXPECT_TRUE(parse_frame(frame)) << "between memories no NIC completes it";
  frame.back() ^= std::byte{1};
  frame[41] ^= std::byte{0xff};
  EXPECT_FALSE(parse_frame(frame));
  EXPECT_TRUE(parse_frame(frame, /*is_verified=*/true)) << "the NIC's verdict goes before ours";
}

TEST(Frame, padding_behind_a_short_packet_is_left_out) {
  PacketBytes frame = frame_with(flow(4), pattern(3, 1));
  frame.resize(60);
  ASSERT_TRUE(parse_frame(frame));
  EXPECT_EQ(parse_frame(frame)->payload.size(), 3U);
}

TEST(Frame, a_truncated_frame_is_refused_at_every_length) {
  for (const std::uint16_t family : kFamilies) {
    const PacketBytes frame = frame_with(flow(family), pattern(100, 1));
    for (std::size_t size = 0; size < frame.size(); ++size) {
      EXPECT_FALSE(parse_frame(std::span(frame).first(size))) << family << " " << size;
    }
  }
}

struct Damage {
  const char* what;
  std::uint16_t family;
  std::size_t at;
  std::uint8_t value;
};

class Damaged : public testing::TestWithParam<Damage> {};

TEST_P(Damaged, is_refused) {
  PacketBytes frame = frame_with(flow(GetParam().family), pattern(100, 1));
  frame[GetParam().at] = static_cast<std::byte>(GetParam().value);
  EXPECT_FALSE(parse_frame(frame));
}

INSTANTIATE_TEST_SUITE_P(Frame,
                         Damaged,
                         testing::Values(Damage{"ether_type", 4, 12, 0x81},
                                         Damage{"ip_options", 4, 14, 0x46},
                                         Damage{"ip_length_below_its_header", 4, 17, 10},
                                         Damage{"ip_length_beyond_the_frame", 4, 16, 9},
                                         Damage{"more_fragments", 4, 20, 0x20},
                                         Damage{"fragment_offset", 4, 21, 1},
                                         Damage{"not_udp", 4, 23, 6},
                                         Damage{"udp_length_below_its_header", 4, 39, 7},
                                         Damage{"udp_length_beyond_the_packet", 4, 38, 1},
                                         Damage{"a_checksum_that_is_wrong", 4, 40, 1},
                                         Damage{"ip_version", 6, 14, 0x40},
                                         Damage{"ip_length_beyond_the_frame6", 6, 18, 9},
                                         Damage{"an_extension_header", 6, 20, 0},
                                         Damage{"a_payload_that_changed", 6, 80, 1},
                                         Damage{"an_address_that_changed", 6, 30, 1}),
                         [](const auto& tested) { return std::string(tested.param.what); });

TEST(Frame, over_ipv6_a_checksum_is_a_must) {
  PacketBytes frame = frame_with(flow(6), pattern(10, 1));
  frame[60] = {};
  frame[61] = {};
  EXPECT_FALSE(parse_frame(frame));
}

/// The sum that a checksum of 16-bit words in network order has, the slow and plain way.
std::uint16_t plain_sum(const PacketBytes& words) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const unsigned low = i + 1 < words.size() ? std::to_integer<unsigned>(words[i + 1]) : 0;
    sum += (std::to_integer<unsigned>(words[i]) << 8U) | low;
  }
  while (sum > 0xffff) {
    sum = (sum & 0xffffU) + (sum >> 16U);
  }
  return static_cast<std::uint16_t>(sum);
}

PacketBytes pseudo_header(const FrameFlow& to, std::size_t udp_bytes) {
  PacketBytes words;
  const std::size_t ip = to.source.family == 4 ? 4 : 16;
  words.insert(words.end(), to.source.ip.begin(), to.source.ip.begin() + static_cast<int>(ip));
  words.insert(
      words.end(), to.destination.ip.begin(), to.destination.ip.begin() + static_cast<int>(ip));
  words.push_back({});
  words.push_back(std::byte{17});
  words.push_back(static_cast<std::byte>(udp_bytes >> 8U));
  words.push_back(static_cast<std::byte>(udp_bytes & 0xffU));
  return words;
}

void put_sum(PacketBytes& frame, std::uint16_t family, std::uint16_t sum) {
  const std::size_t at = frame_header_bytes(family) - 2;
  frame[at] = static_cast<std::byte>(sum >> 8U);
  frame[at + 1] = static_cast<std::byte>(sum & 0xffU);
}

TEST(Frame, a_checksum_of_a_kernel_is_checked_and_one_that_a_nic_should_have_made_is_not) {
  for (const std::uint16_t family : kFamilies) {
    for (const std::size_t size : {1U, 2U, 3U, 1000U, 1001U}) {
      PacketBytes frame = frame_with(flow(family), pattern(size, 3));
      put_sum(frame, family, 0);
      const PacketBytes pseudo = pseudo_header(flow(family), 8 + size);
      PacketBytes all = pseudo;
      const std::size_t udp = frame_header_bytes(family) - 8;
      all.insert(all.end(), frame.begin() + static_cast<std::ptrdiff_t>(udp), frame.end());
      put_sum(frame, family, static_cast<std::uint16_t>(~plain_sum(all)));
      EXPECT_TRUE(parse_frame(frame)) << family << " " << size;
      frame.back() ^= std::byte{1};
      EXPECT_FALSE(parse_frame(frame)) << family << " " << size;
      put_sum(frame, family, plain_sum(pseudo));
      EXPECT_TRUE(parse_frame(frame)) << family << " " << size;
    }
  }
}

}  // namespace
}  // namespace harp::frame_test
