#include "protocol/congestion.hpp"

#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

namespace harp::congestion_test {
namespace {

using std::chrono::milliseconds;

constexpr Duration kRtt = milliseconds(1);

CongestionRound round_of(std::uint32_t delivered, std::uint32_t lost) {
  return {.elapsed = kRtt,
          .delivered_bytes = delivered * 1500ULL,
          .delivered_packets = delivered,
          .lost_packets = lost,
          .window_was_used = true};
}

/// A round in which every sample shows `delay`.
void play(Congestion& congestion, const CongestionRound& round, Duration delay) {
  for (int i = 0; i < 16; ++i) {
    congestion.on_ack(0, delay, kRtt, true);
  }
  congestion.on_ack(round.delivered_packets, Duration(-1), kRtt, true);
  congestion.on_round(round, kRtt + delay, kRtt);
}

Congestion beyond_slow_start() {
  Congestion congestion({.initial_packets = 1000});
  play(congestion, round_of(1000, 0), milliseconds(1));
  EXPECT_FALSE(congestion.in_slow_start());
  return congestion;
}

TEST(Congestion, doubles_in_slow_start_until_a_queue_stands) {
  Congestion congestion({.initial_packets = 10});
  play(congestion, round_of(10, 0), Duration::zero());
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 20);
  play(congestion, round_of(20, 0), Duration::zero());
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 40);
  play(congestion, round_of(40, 0), milliseconds(1));
  EXPECT_FALSE(congestion.in_slow_start());
  EXPECT_LT(congestion.window_packets(), 40);
}

TEST(Congestion, jitter_of_single_packets_is_no_queue) {
  Congestion congestion = beyond_slow_start();
  const double before = congestion.window_packets();
  congestion.on_ack(0, milliseconds(5), kRtt, true);
  congestion.on_ack(0, Duration::zero(), kRtt, true);
  congestion.on_round(round_of(500, 0), kRtt, kRtt);
  EXPECT_GT(congestion.window_packets(), before);
}

TEST(Congestion, a_standing_queue_shrinks_the_window_at_most_by_forty_percent_a_round) {
  Congestion congestion = beyond_slow_start();
  const double before = congestion.window_packets();
  play(congestion, round_of(500, 0), milliseconds(100));
  EXPECT_NEAR(congestion.window_packets(), 0.6 * before, 1e-6);
}

TEST(Congestion, one_percent_of_loss_without_a_queue_is_ignored) {
  Congestion congestion = beyond_slow_start();
  const double before = congestion.window_packets();
  play(congestion, round_of(990, 10), Duration::zero());
  EXPECT_GT(congestion.window_packets(), before);
  EXPECT_FALSE(congestion.rate_is_capped());
}

TEST(Congestion, much_loss_without_a_queue_caps_the_rate_for_ten_rounds_and_no_more) {
  Congestion congestion = beyond_slow_start();
  play(congestion, round_of(500, 100), Duration::zero());
  EXPECT_TRUE(congestion.rate_is_capped());
  const double delivered_bytes_per_s = 500 * 1500 / 1e-3;
  EXPECT_LE(congestion.pacing_rate(kRtt, 1500), 0.98 * delivered_bytes_per_s * 1.0001);
  const double window = congestion.window_packets();
  for (int round = 0; round < 10; ++round) {
    EXPECT_TRUE(congestion.rate_is_capped());
    play(congestion, round_of(490, 100), Duration::zero());
    EXPECT_GE(congestion.window_packets(), window) << "capped, not halved again and again";
  }
  EXPECT_FALSE(congestion.rate_is_capped());
}

TEST(Congestion, loss_with_a_queue_is_congestion) {
  Congestion congestion = beyond_slow_start();
  const double before = congestion.window_packets();
  play(congestion, round_of(500, 1), std::chrono::microseconds(200));
  EXPECT_NEAR(congestion.window_packets(), 0.7 * before, 1e-6);
  EXPECT_FALSE(congestion.rate_is_capped());
}

TEST(Congestion, a_timeout_starts_again_from_the_bottom) {
  Congestion congestion = beyond_slow_start();
  congestion.on_timeout();
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 2);
  EXPECT_TRUE(congestion.in_slow_start());
}

TEST(Congestion, a_timeout_that_was_wrong_did_not_happen) {
  Congestion congestion = beyond_slow_start();
  const double before = congestion.window_packets();
  congestion.on_timeout();
  congestion.on_timeout();  // The next one, with backoff.
  congestion.end_timeout(true);
  EXPECT_DOUBLE_EQ(congestion.window_packets(), before);
  EXPECT_FALSE(congestion.in_slow_start());
}

TEST(Congestion, a_timeout_that_was_right_is_not_undone_by_a_later_one) {
  Congestion congestion = beyond_slow_start();
  congestion.on_timeout();
  congestion.end_timeout(false);
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 2);
  congestion.on_timeout();
  congestion.end_timeout(true);
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 2);
}

/// 1000 packets of 1500 bytes in a millisecond: 1.5 MB lie where they wait for as long, at times 3.
CongestionRound waiting_round(Duration wait) {
  CongestionRound round = round_of(1000, 0);
  round.peer_wait = wait;
  return round;
}

TEST(Congestion, a_peer_that_does_not_look_is_no_queue) {
  Congestion congestion = beyond_slow_start();
  const double before = congestion.window_packets();
  play(congestion, waiting_round(milliseconds(100)), Duration::zero());
  EXPECT_GT(congestion.window_packets(), before);
}

TEST(Congestion, the_peers_buffer_bounds_what_waits_there) {
  Congestion congestion = beyond_slow_start();
  congestion.set_peer_buffer(2'000'000);
  const double before = congestion.window_packets();
  play(congestion, waiting_round(kRtt / 2), Duration::zero());
  EXPECT_DOUBLE_EQ(congestion.window_packets(), before) << "more than half of it: no growth";
  play(congestion, waiting_round(kRtt), Duration::zero());
  EXPECT_LT(congestion.window_packets(), before) << "more than all of it";
  const double after = congestion.window_packets();
  play(congestion, waiting_round(kRtt / 4), Duration::zero());
  EXPECT_GT(congestion.window_packets(), after);
}

TEST(Congestion, loss_while_the_peers_buffer_fills_up_is_its_overflow_and_no_policer) {
  Congestion congestion = beyond_slow_start();
  congestion.set_peer_buffer(2'000'000);
  const double before = congestion.window_packets();
  CongestionRound round = waiting_round(kRtt / 2);
  round.lost_packets = 100;
  play(congestion, round, Duration::zero());
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 0.7 * before);
  EXPECT_FALSE(congestion.rate_is_capped());
}

}  // namespace
}  // namespace harp::congestion_test
