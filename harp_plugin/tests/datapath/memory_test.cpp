#include "datapath/memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/datapath.hpp"
#include "datapath/packets.hpp"

namespace harp::memory_test {
namespace {

constexpr Time kNow{};

Route route_to(std::size_t index, std::uint16_t local_port = 0) {
  return {.peer = MemoryDatapath::address_of(index), .local_port = local_port};
}

TEST(MemoryDatapath, packets_arrive_as_they_were_sent_and_in_order) {
  MemoryNetwork network;
  MemoryDatapath here(network, 0);
  MemoryDatapath there(network, 3);
  EXPECT_EQ(there.address(), MemoryDatapath::address_of(3));
  std::vector<PacketBytes> sent;
  for (const std::size_t bytes : {0U, 1U, 40U, 41U, 500U, 1472U}) {
    sent.push_back(pattern(bytes, bytes));
    send_split(here, route_to(3, 5), sent.back());
  }
  EXPECT_TRUE(here.flush(kNow));
  const auto received = take(there, sent.size());
  ASSERT_EQ(received.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(received[i].packet, sent[i]);
    EXPECT_EQ(received[i].route, route_to(0, 5)) << "an answer takes the same flow";
  }
  EXPECT_EQ(here.stats().packets_sent, sent.size());
  EXPECT_EQ(there.stats().packets_received, sent.size());
  EXPECT_EQ(there.stats().bytes_received, here.stats().bytes_sent);
}

TEST(MemoryDatapath, what_was_received_stays_until_the_next_receive) {
  MemoryNetwork network(1500, 2);
  MemoryDatapath here(network, 0);
  MemoryDatapath there(network, 1);
  const PacketBytes first = pattern(100, 1);
  const PacketBytes second = pattern(100, 2);
  send_split(here, route_to(1), first);
  send_split(here, route_to(1), first);
  const auto arrivals = there.receive();
  ASSERT_EQ(arrivals.size(), 2U);
  send_split(here, route_to(1), second);  // The ring is full of what is still looked at.
  EXPECT_TRUE(std::ranges::equal(arrivals[0].packet, first));
  EXPECT_TRUE(std::ranges::equal(arrivals[1].packet, first));
  EXPECT_EQ(here.stats().send_errors, 1U);
  EXPECT_TRUE(there.receive().empty());
  send_split(here, route_to(1), second);
  const auto later = take_burst(there);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].packet, second);
}

TEST(MemoryDatapath, what_a_full_ring_loses_is_counted) {
  MemoryNetwork network(1500, 8);
  MemoryDatapath here(network, 0);
  MemoryDatapath there(network, 1);
  MemoryDatapath elsewhere(network, 2);
  for (std::uint64_t i = 0; i < 20; ++i) {
    send_split(here, route_to(1), pattern(64, i));
  }
  send_split(here, route_to(2), pattern(64, 99));
  EXPECT_EQ(here.stats().packets_sent, 9U);
  EXPECT_EQ(here.stats().send_errors, 12U);
  const auto received = take(there, 8);
  ASSERT_EQ(received.size(), 8U);
  for (std::uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(received[i].packet, pattern(64, i)) << "the oldest are kept";
  }
  EXPECT_EQ(take_burst(elsewhere).size(), 1U) << "each pair has a ring of its own";
}

TEST(MemoryDatapath, packets_beyond_the_mtu_are_lost_and_counted) {
  MemoryNetwork network(1500);
  MemoryDatapath here(network, 0);
  MemoryDatapath there(network, 1);
  EXPECT_EQ(here.mtu_bytes(), 1500U);
  const std::size_t maximum = 1500 - 28;  // IP and UDP would stand before it.
  send_split(here, route_to(1), pattern(1501, 1));
  send_split(here, route_to(1), pattern(maximum, 2));
  const auto received = take_burst(there);
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(received[0].packet, pattern(maximum, 2));
  EXPECT_EQ(here.stats().send_errors, 1U);
}

TEST(MemoryDatapath, packets_for_nobody_are_lost_and_counted) {
  MemoryNetwork network;
  MemoryDatapath here(network, 0);
  send_split(here, {.peer = {.port = 0}}, pattern(64, 1));
  send_split(here, {.peer = {.port = 60'000}}, pattern(64, 1));
  EXPECT_TRUE(here.flush(kNow));
  EXPECT_EQ(here.stats().send_errors, 2U);
  EXPECT_EQ(here.stats().packets_sent, 0U);
}

TEST(MemoryDatapath, the_descriptor_becomes_readable_only_for_who_waits) {
  MemoryNetwork network;
  MemoryDatapath here(network, 0);
  MemoryDatapath there(network, 1);
  send_split(here, route_to(1), pattern(64, 1));
  ASSERT_TRUE(here.flush(kNow));
  EXPECT_FALSE(is_readable(there.descriptor())) << "nobody waits, so nobody is woken";
  EXPECT_FALSE(there.prepare_to_wait()) << "a packet is there already";
  EXPECT_EQ(take_burst(there).size(), 1U);

  EXPECT_TRUE(there.prepare_to_wait());
  EXPECT_FALSE(is_readable(there.descriptor()));
  send_split(here, route_to(1), pattern(64, 2));
  ASSERT_TRUE(here.flush(kNow));
  EXPECT_TRUE(is_readable(there.descriptor()));
  EXPECT_EQ(take_burst(there).size(), 1U);
  EXPECT_TRUE(there.prepare_to_wait()) << "an old wake-up is forgotten";
  EXPECT_FALSE(is_readable(there.descriptor()));
}

TEST(MemoryDatapath, packets_that_are_being_looked_at_do_not_keep_anybody_awake) {
  MemoryNetwork network;
  MemoryDatapath here(network, 0);
  MemoryDatapath there(network, 1);
  send_split(here, route_to(1), pattern(64, 1));
  ASSERT_TRUE(here.flush(kNow));
  ASSERT_EQ(there.receive().size(), 1U);  // Not given back yet.
  EXPECT_TRUE(there.prepare_to_wait());
}

TEST(MemoryDatapath, nobody_sleeps_through_a_packet) {
  // A ball between two threads that sleep whenever nothing is there: one lost wake-up, and it lies.
  constexpr std::uint64_t kRounds = 20'000;
  MemoryNetwork network;
  const auto play = [&](std::size_t index, std::size_t peer, bool serves) {
    MemoryDatapath datapath(network, index);
    const PacketBytes ball = pattern(64, 1);
    std::uint64_t round = 0;
    if (serves) {
      send_split(datapath, route_to(peer), ball);
      (void)datapath.flush(kNow);
    }
    for (; round < kRounds && take(datapath, 1).size() == 1; ++round) {
      send_split(datapath, route_to(peer), ball);
      (void)datapath.flush(kNow);
    }
    return round;
  };
  std::uint64_t theirs = 0;
  std::thread other([&] { theirs = play(1, 0, false); });
  const std::uint64_t ours = play(0, 1, true);
  other.join();
  EXPECT_EQ(ours, kRounds);
  EXPECT_EQ(theirs, kRounds);
}

}  // namespace
}  // namespace harp::memory_test
