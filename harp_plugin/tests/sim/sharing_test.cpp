// Who gets how much of a link that HARP shares with kernel TCP, as modelled by TcpCubic and TcpBbr:
// in virtual time, on a link of 200 Mb/s, so that the tests are quick. `harp_sharing` prints tables
// of faster ones (docs/harp/congestion.md).
#include <chrono>
#include <cstdio>

#include <gtest/gtest.h>

#include "base/time.hpp"
#include "protocol/competition.hpp"
#include "sim/shared_link.hpp"

namespace harp::sim::sharing_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

SharedLinkConfig link_of(Duration queue, bool competes = true) {
  return {.bits_per_s = 2e8, .queue = queue, .round_trip = microseconds(100), .competes = competes};
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

class BesideCubic : public testing::TestWithParam<int> {
 protected:
  Duration queue() const { return milliseconds(GetParam()); }
};

TEST_P(BesideCubic, a_session_that_comes_later_gets_two_fifths_and_leaves_a_quarter) {
  SharedLink link(link_of(queue()));
  link.add_cubic(Time{});
  link.add_harp(Time(seconds(1)));
  const Shares shares = measure(link, seconds(4), seconds(8));
  EXPECT_GE(shares.harp[0], 0.4);
  EXPECT_GE(shares.tcp[0], 0.25);
}

INSTANTIATE_TEST_SUITE_P(QueueMs, BesideCubic, testing::Values(5, 10, 20, 50));

TEST(Sharing, a_session_that_was_there_before_cubic_keeps_two_fifths) {
  SharedLink link(link_of(milliseconds(10)));
  link.add_harp(Time{});
  link.add_cubic(Time(seconds(1)));
  const Shares shares = measure(link, seconds(3), seconds(7));
  EXPECT_GE(shares.harp[0], 0.4);
  EXPECT_GE(shares.tcp[0], 0.25);
}

TEST(Sharing, a_session_is_not_starved_by_bbr) {
  SharedLink link(link_of(milliseconds(20)));
  link.add_bbr(Time{});
  link.add_harp(Time(seconds(1)));
  const Shares shares = measure(link, seconds(3), seconds(7));
  EXPECT_GE(shares.harp[0], 0.35);
  EXPECT_GE(shares.tcp[0], 0.25);
}

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
  const Competition& competition = *link.session(0).congestion().competition();
  EXPECT_TRUE(competition.is_competing());
  const Shares shares = measure(link, seconds(6), seconds(8));
  EXPECT_FALSE(competition.is_competing());
  EXPECT_GE(shares.harp[0], 0.9);
  EXPECT_LT(shares.mean_queue_s, 0.5e-3);
}

}  // namespace
}  // namespace harp::sim::sharing_test
