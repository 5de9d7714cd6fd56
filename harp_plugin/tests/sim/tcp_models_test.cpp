// The models of kernel TCP that HARP shares links with: whether they do what CUBIC and BBR are
// known for. In virtual time.
#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

#include "base/time.hpp"
#include "sim/shared_link.hpp"
#include "sim/tcp_bbr.hpp"
#include "sim/tcp_cubic.hpp"

namespace harp::sim::tcp_models_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

SharedLinkConfig link_of(Duration queue, Duration round_trip) {
  return {.bits_per_s = 2e8, .queue = queue, .round_trip = round_trip};
}

TcpAck ack_at(Duration at, Duration rtt) {
  return {.now = Time(at), .rtt = rtt};
}

TEST(TcpCubic, loses_three_tenths_of_its_window_once_per_congestion) {
  TcpCubic cubic;
  for (int i = 0; i < 90; ++i) {
    cubic.on_ack(ack_at(milliseconds(i), milliseconds(50)));
  }
  EXPECT_DOUBLE_EQ(cubic.window_packets(), 100);
  cubic.on_congestion(Time(milliseconds(90)), 100);
  EXPECT_DOUBLE_EQ(cubic.window_packets(), 70);
  EXPECT_FALSE(cubic.in_slow_start());
}

TEST(TcpCubic, is_back_at_its_old_window_after_the_cube_root_of_what_it_has_lost) {
  TcpCubic cubic;
  for (int i = 0; i < 990; ++i) {
    cubic.on_ack(ack_at(milliseconds(i), milliseconds(50)));
  }
  cubic.on_congestion(Time(seconds(1)), 1000);
  cubic.on_recovered();
  // K = cbrt(1000 * 0.3 / 0.4) = 9.1 s. As many acknowledgements as a window of 1000 has.
  double at_k = 0;
  for (int i = 0; i < 9100 * 20; ++i) {
    cubic.on_ack(ack_at(seconds(1) + microseconds(50) * i, milliseconds(50)));
    at_k = cubic.window_packets();
  }
  EXPECT_NEAR(at_k, 1000, 20);
}

TEST(TcpCubic, fills_a_deep_queue_and_keeps_seven_tenths_of_it_when_it_loses) {
  SharedLink link(link_of(milliseconds(20), milliseconds(1)));
  link.add_cubic(Time{});
  link.run_until(Time(seconds(3)));
  const Shares shares = link.measure_until(Time(seconds(20)));
  EXPECT_GT(shares.tcp[0], 0.95);
  EXPECT_GT(shares.mean_queue_s, 0.6 * 20e-3);
  EXPECT_GT(shares.max_queue_s, 0.95 * 20e-3);
  EXPECT_GT(link.tcp(0).lost_packets(), 0U);
}

TEST(TcpCubic, two_share_a_link) {
  SharedLink link(link_of(milliseconds(10), milliseconds(1)));
  link.add_cubic(Time{});
  link.add_cubic(Time(milliseconds(700)));
  link.run_until(Time(seconds(10)));
  EXPECT_GT(fairness(link.measure_until(Time(seconds(30))).tcp), 0.95);
}

TEST(TcpBbr, finds_bandwidth_and_round_trip_of_a_path) {
  SharedLink link(link_of(milliseconds(100), milliseconds(20)));
  link.add_bbr(Time{});
  link.run_until(Time(seconds(5)));
  const Shares shares = link.measure_until(Time(seconds(9)));
  EXPECT_GT(shares.tcp[0], 0.93);
  const auto& bbr = dynamic_cast<const TcpBbr&>(link.tcp(0).control());
  EXPECT_EQ(bbr.state(), TcpBbr::State::kProbeBw);
  EXPECT_NEAR(bbr.bandwidth(), 2e8 / 8 / kTcpPacketBytes, 0.05 * 2e8 / 8 / kTcpPacketBytes);
  EXPECT_LT(harp::seconds(bbr.min_rtt()), 22e-3);
  EXPECT_LT(shares.mean_queue_s, 10e-3) << "half a round trip's worth, of a queue of five";
}

TEST(TcpBbr, looks_for_the_shortest_round_trip_every_ten_seconds) {
  SharedLink link(link_of(milliseconds(50), milliseconds(1)));
  link.add_bbr(Time{});
  link.add_cubic(Time(seconds(1)));
  int probing = 0;
  for (int tenth = 1; tenth <= 250; ++tenth) {
    link.run_until(Time(milliseconds(100) * tenth));
    const auto& bbr = dynamic_cast<const TcpBbr&>(link.tcp(0).control());
    probing += bbr.state() == TcpBbr::State::kProbeRtt ? 1 : 0;
  }
  EXPECT_GE(probing, 2);
  EXPECT_LE(probing, 12) << "200 ms, and what it takes to drain, every ten seconds";
}

TEST(TcpBbr, takes_most_of_a_shallow_queue_from_cubic) {
  SharedLink link(link_of(milliseconds(2), milliseconds(1)));
  link.add_cubic(Time{});
  link.add_bbr(Time(milliseconds(500)));
  link.run_until(Time(seconds(3)));
  const Shares shares = link.measure_until(Time(seconds(13)));
  EXPECT_GT(shares.tcp[1], 2 * shares.tcp[0]);
}

TEST(Fairness, is_one_among_equals_and_one_of_n_for_a_winner) {
  EXPECT_DOUBLE_EQ(fairness({0.2, 0.2, 0.2, 0.2}), 1);
  EXPECT_DOUBLE_EQ(fairness({0.8, 0, 0, 0}), 0.25);
}

}  // namespace
}  // namespace harp::sim::tcp_models_test
