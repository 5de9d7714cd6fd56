#include "datapath/arp.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <gtest/gtest.h>

#include "datapath/address.hpp"
#include "datapath/frame.hpp"

namespace harp::arp_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kNetwork = 0x0a5f0000;  // 10.95.0.0/24
constexpr Time kNow{seconds(100)};

MacAddress mac(std::uint8_t number) {
  return {std::byte{2}, {}, {}, {}, {}, static_cast<std::byte>(number)};
}

Address host(std::uint32_t ip) {
  Address address;
  for (std::size_t i = 0; i < 4; ++i) {
    address.ip[i] = static_cast<std::byte>(ip >> (24 - 8 * i));
  }
  return address;
}

ArpTable table(std::uint8_t number, std::uint32_t gateway = 0) {
  return ArpTable({.mac = mac(number), .ip = kNetwork + number, .prefix = 24, .gateway = gateway});
}

TEST(Arp, a_request_and_its_answer_make_both_ends_known) {
  ArpTable here = table(1);
  ArpTable there = table(2);
  const auto hop = here.find(host(kNetwork + 2), kNow);
  EXPECT_FALSE(hop.mac);
  ASSERT_TRUE(hop.request);
  EXPECT_TRUE(std::ranges::all_of(std::span(*hop.request).first(6),
                                  [](std::byte byte) { return byte == std::byte{0xff}; }));
  const auto answer = there.on_frame(*hop.request, kNow);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(here.on_frame(*answer, kNow));
  EXPECT_EQ(*here.find(host(kNetwork + 2), kNow).mac, mac(2));
  EXPECT_FALSE(here.find(host(kNetwork + 2), kNow).request);
}

TEST(Arp, a_question_is_repeated_but_not_with_every_packet) {
  ArpTable here = table(1);
  int requests = 0;
  for (int i = 0; i < 1000; ++i) {
    requests += here.find(host(kNetwork + 2), kNow + milliseconds(i)).request ? 1 : 0;
  }
  EXPECT_EQ(requests, 50);
}

TEST(Arp, what_is_known_for_long_is_used_and_asked_for_again) {
  ArpTable here = table(1);
  ArpTable there = table(2);
  const auto first = here.find(host(kNetwork + 2), kNow);
  (void)here.on_frame(*there.on_frame(*first.request, kNow), kNow);
  const auto later = here.find(host(kNetwork + 2), kNow + seconds(31));
  EXPECT_EQ(*later.mac, mac(2));
  EXPECT_TRUE(later.request);
}

TEST(Arp, others_are_behind_the_gateway_if_there_is_one) {
  EXPECT_FALSE(table(1).find(host(0x08080808), kNow).request);
  ArpTable here = table(1, kNetwork + 254);
  const auto hop = here.find(host(0x08080808), kNow);
  ASSERT_TRUE(hop.request);
  EXPECT_EQ(parse_arp(*hop.request)->target_ip, kNetwork + 254);
}

TEST(Arp, answers_that_nobody_asked_for_and_foreign_questions_change_nothing) {
  ArpTable here = table(1);
  const ArpPacket unasked{.is_request = false,
                          .sender_mac = mac(9),
                          .sender_ip = kNetwork + 2,
                          .target_ip = kNetwork + 1};
  EXPECT_FALSE(here.on_frame(encode_arp(unasked, mac(1)), kNow));
  EXPECT_FALSE(here.find(host(kNetwork + 2), kNow).mac);
  const ArpPacket foreign{.is_request = true,
                          .sender_mac = mac(9),
                          .sender_ip = kNetwork + 2,
                          .target_ip = kNetwork + 3};
  EXPECT_FALSE(here.on_frame(encode_arp(foreign, mac(1)), kNow));
  EXPECT_FALSE(here.find(host(kNetwork + 2), kNow).mac);
  const ArpPacket own{.is_request = true,
                      .sender_mac = mac(9),
                      .sender_ip = kNetwork + 1,
                      .target_ip = kNetwork + 1};
  EXPECT_FALSE(here.on_frame(encode_arp(own, mac(1)), kNow));
}

TEST(Arp, a_flood_of_peers_does_not_fill_the_memory) {
  ArpTable here(ArpTable::Self{.mac = mac(1), .ip = 1, .prefix = 0});
  for (std::uint32_t ip = 2; ip < 20 * ArpTable::kMaxNeighbours; ++ip) {
    EXPECT_FALSE(here.find(host(ip), kNow).mac);
  }
}

TEST(Arp, what_is_written_is_read_and_all_else_is_refused) {
  const ArpPacket packet{
      .is_request = false, .sender_mac = mac(7), .sender_ip = 0x01020304, .target_ip = 0xfffefdfc};
  const ArpFrame frame = encode_arp(packet, mac(8));
  EXPECT_EQ(parse_arp(frame), packet);
  for (std::size_t size = 0; size < frame.size(); ++size) {
    EXPECT_FALSE(parse_arp(std::span(frame).first(size))) << size;
  }
  for (const std::size_t at : {12U, 13U, 14U, 15U, 16U, 17U, 18U, 19U, 20U, 21U}) {
    ArpFrame damaged = frame;
    damaged[at] ^= std::byte{0x40};
    EXPECT_FALSE(parse_arp(damaged)) << at;
  }
}

}  // namespace
}  // namespace harp::arp_test
