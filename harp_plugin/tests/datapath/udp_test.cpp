// Over the loopback interface, IPv4 and, where the machine has it, IPv6.
#include "datapath/udp.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "datapath/datapath.hpp"
#include "datapath/packets.hpp"

namespace harp::udp_test {
namespace {

constexpr std::size_t kLoopbackMtu = 65536;
constexpr Time kNow{std::chrono::seconds(1)};

Address loopback(std::uint16_t family) {
  Address address{.family = family};
  if (family == 4) {
    address.ip[0] = std::byte{127};
    address.ip[3] = std::byte{1};
  } else {
    address.ip[15] = std::byte{1};
  }
  return address;
}

std::unique_ptr<UdpDatapath> opened(const UdpOptions& options) {
  std::string error;
  auto datapath = UdpDatapath::open(options, &error);
  EXPECT_NE(datapath, nullptr) << error;
  EXPECT_EQ(error, "");
  return datapath;
}

bool has_ipv6() {
  std::string error;
  return UdpDatapath::open({.local = loopback(6)}, &error) != nullptr;
}

std::vector<std::uint16_t> families() {
  return has_ipv6() ? std::vector<std::uint16_t>{4, 6} : std::vector<std::uint16_t>{4};
}

struct Pair {
  explicit Pair(std::uint16_t family = 4, bool segment = true)
      : here(opened({.local = loopback(family), .mtu_bytes = kLoopbackMtu, .segment = segment})),
        there(opened({.local = loopback(family), .mtu_bytes = kLoopbackMtu, .segment = segment})) {}
  Route route(std::uint16_t local_port = 0) const {
    return {.peer = there->address(), .local_port = local_port};
  }
  void flush() {
    for (int tries = 0; !here->flush(kNow); ++tries) {  // The other end's buffer is ours as well.
      ASSERT_LT(tries, 1'000'000);
    }
  }

  std::unique_ptr<UdpDatapath> here;
  std::unique_ptr<UdpDatapath> there;
};

/// Without the zeros at the end, as padding cannot be told from them here.
PacketBytes unpadded(PacketBytes packet) {
  while (!packet.empty() && packet.back() == std::byte{0}) {
    packet.pop_back();
  }
  return packet;
}

/// How often each packet is there.
std::map<PacketBytes, int> counted(const std::vector<PacketBytes>& packets) {
  std::map<PacketBytes, int> counts;
  for (const PacketBytes& packet : packets) {
    ++counts[unpadded(packet)];
  }
  return counts;
}

std::vector<PacketBytes> contents(const std::vector<Received>& received) {
  std::vector<PacketBytes> packets;
  for (const Received& one : received) {
    packets.push_back(one.packet);
  }
  return packets;
}

TEST(UdpDatapath, packets_arrive_as_they_were_sent_over_both_families) {
  for (const std::uint16_t family : families()) {
    for (const bool segment : {true, false}) {
      Pair pair(family, segment);
      EXPECT_EQ(pair.here->address().family, family);
      EXPECT_NE(pair.here->address().port, 0);
      std::vector<PacketBytes> sent;
      for (const std::size_t bytes : {1U, 39U, 40U, 41U, 1472U, 9000U, 65'000U, 65'507U - 40U}) {
        sent.push_back(pattern(bytes, bytes));
        send_split(*pair.here, pair.route(), sent.back());
      }
      pair.flush();
      const auto received = take(*pair.there, sent.size());
      EXPECT_EQ(contents(received), sent) << "one flow of the loopback keeps its order";
      EXPECT_EQ(pair.here->stats().packets_sent, sent.size());
      EXPECT_EQ(pair.there->stats().packets_received, sent.size());
      EXPECT_EQ(pair.there->stats().bytes_received, pair.here->stats().bytes_sent);
      EXPECT_EQ(pair.here->stats().send_errors, 0U);
    }
  }
}

TEST(UdpDatapath, an_empty_payload_adds_nothing) {
  Pair pair;
  const PacketBytes head = pattern(40, 1);
  const PacketBytes payload = pattern(40, 2);
  pair.here->send(pair.route(), head, {});
  pair.here->send(pair.route(), {}, payload);
  pair.here->send(pair.route(), head, {});
  pair.flush();
  EXPECT_EQ(contents(take(*pair.there, 3)), (std::vector{head, payload, head}));
}

TEST(UdpDatapath, the_head_is_copied_and_the_payload_read_until_the_flush) {
  Pair pair;
  PacketBytes head = pattern(40, 1);
  PacketBytes payload = pattern(100, 2);
  PacketBytes expected = head;
  pair.here->send(pair.route(), head, payload);
  std::ranges::fill(head, std::byte{0});
  payload[0] ^= std::byte{1};
  expected.insert(expected.end(), payload.begin(), payload.end());
  pair.flush();
  std::ranges::fill(payload, std::byte{0});
  EXPECT_EQ(contents(take(*pair.there, 1)), (std::vector<PacketBytes>{expected}));
}

TEST(UdpDatapath, packets_of_one_size_and_route_leave_together) {
  constexpr std::size_t kPackets = 100;
  const auto transfer = [&](Pair& pair) {
    std::vector<PacketBytes> sent;
    for (std::size_t i = 0; i < kPackets; ++i) {
      sent.push_back(pattern(i + 1 < kPackets ? 1448 : 700, i));  // The last is shorter.
      send_split(*pair.here, pair.route(), sent.back());
    }
    pair.flush();
    EXPECT_EQ(contents(take(*pair.there, kPackets)), sent);
  };
  Pair together(4, true);
  transfer(together);
  if (together.here->is_segmenting()) {  // Every Linux from 4.18 on.
    EXPECT_LT(together.here->stats().batches_sent, kPackets / 10);
    EXPECT_EQ(together.here->stats().packets_sent, kPackets);
  }
  Pair apart(4, false);
  EXPECT_FALSE(apart.here->is_segmenting());
  transfer(apart);
  EXPECT_EQ(apart.here->stats().batches_sent, kPackets);
  EXPECT_EQ(apart.here->stats().bytes_sent, together.here->stats().bytes_sent);
}

/// Sizes of what arrives, of packets that are sent with these.
std::vector<std::size_t> sizes_received(Pair& pair, const std::vector<std::size_t>& sizes) {
  std::vector<PacketBytes> sent;
  for (const std::size_t bytes : sizes) {
    sent.push_back(pattern(bytes, sent.size()));
    send_split(*pair.here, pair.route(), sent.back());
  }
  pair.flush();
  const auto received = contents(take(*pair.there, sent.size()));
  EXPECT_EQ(counted(received), counted(sent));
  EXPECT_EQ(pair.here->stats().bytes_sent, pair.there->stats().bytes_received);
  std::vector<std::size_t> result;
  for (const PacketBytes& packet : received) {
    result.push_back(packet.size());
  }
  return result;
}

TEST(UdpDatapath, shorter_packets_are_padded_to_leave_with_those_behind_them) {
  Pair pair;
  if (!pair.here->is_segmenting()) {
    GTEST_SKIP() << "the kernel has no UDP_SEGMENT";
  }
  // Three messages of 4 KiB and the beginning of a fourth.
  EXPECT_EQ(sizes_received(pair, {1448, 1448, 1320, 1448, 1448, 1320, 1448, 1448, 1320, 1448}),
            std::vector<std::size_t>(10, 1448));
  EXPECT_EQ(pair.here->stats().batches_sent, 1U);
}

TEST(UdpDatapath, the_last_packet_of_a_batch_is_not_padded) {
  Pair pair;
  const std::vector<std::size_t> sizes{1448, 1448, 1400};
  EXPECT_EQ(sizes_received(pair, sizes), sizes);
}

TEST(UdpDatapath, padding_is_a_sixteenth_at_most) {
  Pair pair;
  const std::vector<std::size_t> halves{1448, 724, 1448, 724, 1448, 724, 1448, 724};
  EXPECT_EQ(sizes_received(pair, halves), halves);
  // A short packet behind many long ones is little, until there are too many of them.
  std::vector<std::size_t> sizes(20, 1448);
  sizes.insert(sizes.end(), {100, 1448, 100, 1448});
  auto expected = sizes;
  if (pair.here->is_segmenting()) {
    expected[20] = 1448;
  }
  EXPECT_EQ(sizes_received(pair, sizes), expected);
}

TEST(UdpDatapath, without_segmentation_nothing_is_padded) {
  Pair pair(4, false);
  const std::vector<std::size_t> sizes{1448, 1448, 1320, 1448, 1448, 1320, 1448};
  EXPECT_EQ(sizes_received(pair, sizes), sizes);
}

TEST(UdpDatapath, segmenting_and_plain_ends_understand_one_another) {
  for (const bool sender_segments : {true, false}) {
    Pair pair(4, sender_segments);
    pair.there =
        opened({.local = loopback(4), .mtu_bytes = kLoopbackMtu, .segment = !sender_segments});
    std::vector<PacketBytes> sent;
    for (std::size_t i = 0; i < 60; ++i) {
      sent.push_back(pattern(900, i));
      send_split(*pair.here, pair.route(), sent.back());
    }
    pair.flush();
    EXPECT_EQ(contents(take(*pair.there, sent.size())), sent);
  }
}

TEST(UdpDatapath, packets_of_all_sizes_and_routes_arrive_each_from_its_flow) {
  Rng rng(5);
  for (const std::uint16_t family : families()) {
    Pair pair(family);
    const auto third = opened({.local = loopback(family), .mtu_bytes = kLoopbackMtu});
    std::map<std::uint16_t, std::uint16_t> flows;  // Our local port, by the port that they see.
    for (int round = 0; round < 20; ++round) {
      std::vector<PacketBytes> to_there;
      std::vector<PacketBytes> to_third;
      std::map<PacketBytes, std::uint16_t> local_ports;
      const std::size_t count = rng.between(1, pair.here->room());
      std::vector<PacketBytes> sent(count);  // Payloads stay where they are.
      for (PacketBytes& packet : sent) {
        const std::size_t bytes = rng.chance(0.5) ? 1448 : rng.between(20, 3000);
        packet = pattern(bytes, rng());
        const auto local_port = static_cast<std::uint16_t>(rng.below(pair.here->local_ports()));
        local_ports[unpadded(packet)] = local_port;
        const bool is_for_third = rng.chance(0.2);
        (is_for_third ? to_third : to_there).push_back(packet);
        const Address& peer = is_for_third ? third->address() : pair.there->address();
        send_split(*pair.here, {.peer = peer, .local_port = local_port}, packet);
      }
      pair.flush();
      const auto received = take(*pair.there, to_there.size());
      EXPECT_EQ(counted(contents(received)), counted(to_there));
      EXPECT_EQ(counted(contents(take(*third, to_third.size()))), counted(to_third));
      for (const Received& one : received) {
        const std::uint16_t port = one.route.peer.port;
        const std::uint16_t local_port = local_ports.at(unpadded(one.packet));
        EXPECT_EQ(flows.try_emplace(port, local_port).first->second, local_port);
      }
    }
    EXPECT_EQ(flows.size(), pair.here->local_ports()) << "each local port is a flow of its own";
  }
}

TEST(UdpDatapath, an_answer_by_the_route_of_its_packet_comes_back_to_the_port_that_sent_it) {
  Pair pair;
  for (std::uint16_t local_port = 0; local_port < pair.here->local_ports(); ++local_port) {
    const PacketBytes question = pattern(100, local_port);
    send_split(*pair.here, pair.route(local_port), question);
    pair.flush();
    const auto asked = take(*pair.there, 1);
    ASSERT_EQ(asked.size(), 1U);
    EXPECT_EQ(asked[0].route.local_port, 0) << "peers send to the first port";
    send_split(*pair.there, asked[0].route, asked[0].packet);
    ASSERT_TRUE(pair.there->flush(kNow));
    const auto answered = take(*pair.here, 1);
    ASSERT_EQ(answered.size(), 1U);
    EXPECT_EQ(answered[0].packet, question);
    EXPECT_EQ(answered[0].route, pair.route(local_port)) << "through the same pair of ports";
  }
}

TEST(UdpDatapath, a_port_that_is_taken_is_named_with_the_reason) {
  Pair pair;
  std::string error;
  EXPECT_EQ(UdpDatapath::open({.local = pair.here->address()}, &error), nullptr);
  EXPECT_NE(error.find(to_string(pair.here->address())), std::string::npos) << error;
  EXPECT_NE(error.find("Address already in use"), std::string::npos) << error;
}

TEST(UdpDatapath, an_address_that_is_not_ours_is_named_with_the_reason) {
  Address address{.port = 7};
  address.ip[0] = std::byte{192};  // TEST-NET-1.
  address.ip[2] = std::byte{2};
  address.ip[3] = std::byte{1};
  std::string error;
  EXPECT_EQ(UdpDatapath::open({.local = address}, &error), nullptr);
  EXPECT_NE(error.find("192.0.2.1:7"), std::string::npos) << error;
  EXPECT_NE(error.find("Cannot assign requested address"), std::string::npos) << error;
}

TEST(UdpDatapath, packets_that_the_kernel_refuses_are_counted_and_later_ones_still_go) {
  Pair pair;
  const PacketBytes good = pattern(1000, 1);
  const PacketBytes too_large = pattern(65'508, 2);  // Beyond what UDP can carry.
  Address nowhere = loopback(4);
  nowhere.ip[0] = std::byte{192};  // Not reachable from a loopback address.
  nowhere.ip[2] = std::byte{2};
  nowhere.port = 9;
  send_split(*pair.here, pair.route(), good);
  send_split(*pair.here, pair.route(), too_large);
  send_split(*pair.here, pair.route(), too_large);
  send_split(*pair.here, pair.route(), good);
  send_split(*pair.here, {.peer = nowhere}, good);
  send_split(*pair.here, pair.route(3), good);
  pair.flush();
  EXPECT_EQ(contents(take(*pair.there, 3)), (std::vector{good, good, good}));
  EXPECT_EQ(pair.here->stats().send_errors, 3U);
  EXPECT_EQ(pair.here->stats().packets_sent, 3U);
  EXPECT_EQ(pair.here->room(), Pair().here->room());
}

TEST(UdpDatapath, a_peer_that_cannot_be_reached_does_not_end_segmentation) {
  Pair pair;
  if (!pair.here->is_segmenting()) {
    GTEST_SKIP() << "the kernel has no UDP_SEGMENT";
  }
  Address nowhere = loopback(4);
  nowhere.ip[0] = std::byte{192};
  nowhere.ip[2] = std::byte{2};
  nowhere.port = 9;
  const PacketBytes packet = pattern(1000, 1);
  for (int i = 0; i < 10; ++i) {
    send_split(*pair.here, {.peer = nowhere}, packet);
  }
  pair.flush();
  EXPECT_EQ(pair.here->stats().send_errors, 10U);
  EXPECT_TRUE(pair.here->is_segmenting());
}

TEST(UdpDatapath, nobody_at_the_other_end_is_no_error) {
  Pair pair;
  const Route route = pair.route();
  pair.there.reset();
  const PacketBytes packet = pattern(100, 1);
  for (int i = 0; i < 3; ++i) {
    send_split(*pair.here, route, packet);
    pair.flush();
  }
  EXPECT_TRUE(take_burst(*pair.here).empty());
  EXPECT_EQ(pair.here->stats().packets_sent, 3U) << "lost on the way";
}

TEST(UdpDatapath, room_is_what_send_takes_and_a_flush_gives_it_back) {
  Pair pair;
  const PacketBytes packet = pattern(100, 1);
  const std::size_t room = pair.here->room();
  ASSERT_GT(room, 0U);
  for (std::size_t left = room; left > 0; --left) {
    EXPECT_EQ(pair.here->room(), left);
    send_split(*pair.here, pair.route(), packet);
  }
  EXPECT_EQ(pair.here->room(), 0U);
  pair.flush();
  EXPECT_EQ(pair.here->room(), room);
  EXPECT_EQ(take(*pair.there, room).size(), room);
}

TEST(UdpDatapath, what_is_discarded_is_never_sent) {
  Pair pair;
  {
    const PacketBytes payload = pattern(1000, 1);
    pair.here->send(pair.route(), {}, payload);
    pair.here->discard();
  }
  EXPECT_EQ(pair.here->room(), Pair().here->room());
  const PacketBytes marker = pattern(100, 2);
  send_split(*pair.here, pair.route(), marker);
  pair.flush();
  EXPECT_EQ(contents(take(*pair.there, 1)), (std::vector<PacketBytes>{marker}));
  EXPECT_EQ(pair.here->stats().packets_sent, 1U);
}

TEST(UdpDatapath, the_descriptor_is_readable_while_packets_are_there) {
  Pair pair;
  EXPECT_TRUE(pair.there->prepare_to_wait());
  EXPECT_FALSE(is_readable(pair.there->descriptor()));
  // At the ports of either kind: the one that peers know, and those of our own flows.
  const PacketBytes packet = pattern(100, 1);
  for (const std::uint16_t local_port : {std::uint16_t{0}, std::uint16_t{5}}) {
    send_split(*pair.here, pair.route(local_port), packet);
    pair.flush();
    const auto asked = take(*pair.there, 1);
    ASSERT_EQ(asked.size(), 1U);
    EXPECT_FALSE(is_readable(pair.there->descriptor()));
    send_split(*pair.there, asked[0].route, packet);
    ASSERT_TRUE(pair.there->flush(kNow));
    EXPECT_EQ(take(*pair.here, 1).size(), 1U);
    EXPECT_FALSE(is_readable(pair.here->descriptor()));
  }
}

TEST(UdpDatapath, an_arrival_knows_how_long_it_has_waited) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kWait = std::chrono::milliseconds(20);
  for (const std::uint16_t family : families()) {
    Pair pair(family);
    const PacketBytes packet = pattern(100, 1);
    Duration waited{};
    // A busy kernel begins to note times some packets after the first socket has asked for them.
    for (int tries = 0; tries < 100 && waited < kWait / 2; ++tries) {
      const auto sent = Clock::now();
      send_split(*pair.here, pair.route(), packet);
      pair.flush();
      pollfd ready{.fd = pair.there->descriptor(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
      std::this_thread::sleep_for(kWait);
      const auto arrivals = pair.there->receive();
      ASSERT_EQ(arrivals.size(), 1U);
      waited = arrivals[0].waited;
      EXPECT_LE(waited, Clock::now() - sent + std::chrono::milliseconds(1));
    }
    EXPECT_GE(waited, kWait - std::chrono::milliseconds(1)) << "the two clocks' rates";
  }
}

TEST(UdpDatapath, the_buffer_is_as_large_as_the_kernel_allows) {
  const auto datapath = opened({.local = loopback(4), .buffer_bytes = 100'000});
  EXPECT_EQ(datapath->buffer_bytes(), 100'000U);
}

}  // namespace
}  // namespace harp::udp_test
