#include "protocol/sent_packets.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "base/time.hpp"

namespace harp::sent_packets_test {
namespace {

Psn add_to(SentPackets& packets) {
  const Psn psn = packets.next();
  EXPECT_EQ(&packets.add(), &packets.at(psn));
  return psn;
}

TEST(SentPackets, the_window_moves_over_everything_acknowledged) {
  SentPackets packets(0xfffffffe, 64);
  for (PathSeq i = 0; i < 5; ++i) {
    packets.on_sent(add_to(packets), 0, i, Time{});
  }
  packets.on_acked(0xffffffff);
  packets.on_acked(1);
  EXPECT_EQ(packets.oldest(), 0xfffffffeU);
  packets.on_acked(0xfffffffe);
  EXPECT_EQ(packets.oldest(), 0U);
  EXPECT_EQ(packets.acked_word(0), 0b10U);
  packets.on_acked(0);
  EXPECT_EQ(packets.oldest(), 2U);
  EXPECT_EQ(packets.in_flight(), 1U);
  packets.on_acked(2);
  EXPECT_TRUE(packets.all_acked());
}

TEST(SentPackets, a_path_lists_its_packets_in_the_order_of_their_last_transmission) {
  SentPackets packets(10, 64);
  for (PathSeq i = 0; i < 4; ++i) {
    packets.on_sent(add_to(packets), 3, i, Time{});
  }
  EXPECT_EQ(packets.front(3), 10U);
  packets.on_lost(10);
  EXPECT_EQ(packets.front(3), 11U);
  EXPECT_EQ(packets.front(SentPackets::kLostList), 10U);
  packets.on_sent(10, 3, 4, Time{});
  packets.on_acked(11);
  packets.on_acked(12);
  packets.on_acked(13);
  EXPECT_EQ(packets.front(3), 10U);
  packets.on_sent(10, 5, 0, Time{});
  EXPECT_TRUE(packets.list_is_empty(3));
  EXPECT_EQ(packets.in_flight_on(5), 1U);
}

TEST(SentPackets, counts_agree_with_a_model_under_random_operations) {
  Rng rng(3);
  constexpr std::uint32_t kWindow = 64;
  SentPackets packets(0xffffff80, kWindow);
  for (int step = 0; step < 100000; ++step) {
    const std::uint32_t held = packets.next() - packets.oldest();
    const Psn psn = packets.oldest() + static_cast<Psn>(rng.below(held == 0 ? 1 : held));
    const auto state = held == 0 ? SentPacket::State::kAcked : packets.at(psn).state;
    const auto path = static_cast<PathIndex>(rng.below(4));
    if (held < kWindow && rng.chance(0.4)) {
      packets.on_sent(add_to(packets), path, 0, Time{});
    } else if (state == SentPacket::State::kInFlight && rng.chance(0.3)) {
      packets.on_lost(psn);
    } else if (state == SentPacket::State::kLost && rng.chance(0.5)) {
      packets.on_sent(psn, path, 0, Time{});
    } else if (state != SentPacket::State::kAcked) {
      packets.on_acked(psn);
    }
    std::uint32_t in_flight = 0;
    std::uint32_t lost = 0;
    for (Psn at = packets.oldest(); at != packets.next(); ++at) {
      in_flight += packets.at(at).state == SentPacket::State::kInFlight ? 1 : 0;
      lost += packets.at(at).state == SentPacket::State::kLost ? 1 : 0;
    }
    ASSERT_EQ(packets.in_flight(), in_flight);
    ASSERT_EQ(packets.lost(), lost);
    std::uint32_t listed = 0;
    for (PathIndex each = 0; each < 4; ++each) {
      listed += packets.in_flight_on(each);
    }
    ASSERT_EQ(listed, in_flight);
  }
}

}  // namespace
}  // namespace harp::sent_packets_test
