// Who gets how much of a link that HARP shares with kernel TCP, as modelled by TcpCubic and TcpBbr:
// in virtual time, on a link of 1 Gb/s.
#include <chrono>
#include <cstdio>
#include <tuple>

#include <gtest/gtest.h>

#include "base/time.hpp"
#include "protocol/competition.hpp"
#include "sim/shared_link.hpp"

namespace harp::sim::sharing_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kQueuesMs[] = {1, 5, 20};

SharedLinkConfig link_of(Duration queue, bool competes = true) {
  return {.bits_per_s = 1e9, .queue = queue, .round_trip = microseconds(100), .competes = competes};
}

Shares measure(SharedLink& link, Duration from, Duration until) {
  link.run_until(Time(from));
  const Shares shares = link.measure_until(Time(until));
  std::printf("  HARP %.2f, TCP %.2f, queue %.2f ms\n",
              shares.harp_sum(),
              shares.tcp_sum(),
              shares.mean_queue_s * 1e3);
  return shares;
}

TEST(Sharing, who_does_not_compete_is_starved_by_cubic) {
  SharedLink link(link_of(milliseconds(10), false));
  link.add_cubic(Time{});
  link.add_harp(Time(seconds(1)));
  EXPECT_LT(measure(link, seconds(3), seconds(6)).harp[0], 0.1);
}

class BesideTcp : public testing::TestWithParam<int> {
 protected:
  Duration queue() const { return milliseconds(GetParam()); }
  void expect_fair(SharedLink& link) {
    const Shares shares = measure(link, seconds(3), seconds(6));
    EXPECT_GE(shares.harp[0], 0.4);
    EXPECT_GE(shares.tcp[0], 0.15);
  }
};

TEST_P(BesideTcp, a_session_that_comes_after_cubic_gets_two_fifths_and_leaves_a_seventh) {
  SharedLink link(link_of(queue()));
  link.add_cubic(Time{});
  link.add_harp(Time(seconds(1)));
  expect_fair(link);
}

TEST_P(BesideTcp, a_session_that_was_there_before_cubic_keeps_two_fifths) {
  SharedLink link(link_of(queue()));
  link.add_harp(Time{});
  link.add_cubic(Time(seconds(1)));
  expect_fair(link);
}

TEST_P(BesideTcp, a_session_that_comes_after_bbr_gets_two_fifths_and_leaves_a_seventh) {
  SharedLink link(link_of(queue()));
  link.add_bbr(Time{});
  link.add_harp(Time(seconds(1)));
  expect_fair(link);
}

TEST_P(BesideTcp, a_session_that_was_there_before_bbr_keeps_two_fifths) {
  SharedLink link(link_of(queue()));
  link.add_harp(Time{});
  link.add_bbr(Time(seconds(1)));
  expect_fair(link);
}

INSTANTIATE_TEST_SUITE_P(QueueMs, BesideTcp, testing::ValuesIn(kQueuesMs));

/// Four sessions that begin 5 ms after one another.
class FourSessions : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(FourSessions, share_equally_and_keep_the_queue_short) {
  const auto [queue_ms, competes] = GetParam();
  SharedLink link(link_of(milliseconds(queue_ms), competes));
  for (int i = 0; i < 4; ++i) {
    link.add_harp(Time(milliseconds(5 * i)));
  }
  const Shares shares = measure(link, seconds(1), seconds(4));
  EXPECT_GE(fairness(shares.harp), 0.98);
  EXPECT_GE(shares.harp_sum(), 0.9);
  EXPECT_LT(shares.mean_queue_s, 0.5e-3);
}

INSTANTIATE_TEST_SUITE_P(QueueMs,
                         FourSessions,
                         testing::Combine(testing::ValuesIn(kQueuesMs), testing::Bool()));

TEST(Sharing, alone_a_session_fills_the_link_and_leaves_the_queue_empty) {
  SharedLink link(link_of(milliseconds(50)));
  link.add_harp(Time{});
  const Shares shares = measure(link, milliseconds(200), seconds(3));
  EXPECT_GE(shares.harp[0], 0.9);
  EXPECT_LT(shares.mean_queue_s, 0.5e-3);
}

TEST(Sharing, when_cubic_has_ended_the_queue_is_short_again) {
  SharedLink link(link_of(milliseconds(10)));
  link.add_harp(Time{});
  link.add_cubic(Time(seconds(1)), Time(seconds(4)));
  link.run_until(Time(seconds(3)));
  const Competition& competition = link.session(0).congestion().competition();
  EXPECT_TRUE(competition.is_competing());
  const Shares shares = measure(link, seconds(6), seconds(8));
  EXPECT_FALSE(competition.is_competing());
  EXPECT_GE(shares.harp[0], 0.9);
  EXPECT_LT(shares.mean_queue_s, 0.5e-3);
}

}  // namespace
}  // namespace harp::sim::sharing_test
