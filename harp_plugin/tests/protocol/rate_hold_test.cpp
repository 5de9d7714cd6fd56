#include "protocol/rate_hold.hpp"

#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "base/time.hpp"

namespace harp::rate_hold_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kLink = 80'000;  ///< Packets per second: 1 Gb/s.
constexpr Duration kRtt = milliseconds(1);
constexpr double kMaxWindow = 3000;

/// A link whose full queue drops what it cannot carry, of each sender the same part.
class Link {
 public:
  explicit Link(double others) : others_(others) {}

  void play(Duration time) {
    for (Duration at{}; at < time; at += kRtt) {
      const double by_window = window_ / harp::seconds(kRtt);
      const double sent = hold.rate() > 0 ? std::min(hold.rate(), by_window) : by_window;
      const double part = std::min(1.0, kLink / (sent + others_));
      arrived = sent * part;
      window_ = hold.on_round({.elapsed = kRtt,
                               .rtt = kRtt,
                               .delivered = arrived * harp::seconds(kRtt),
                               .lost = (sent - arrived) * harp::seconds(kRtt),
                               .has_queue = part < 1},
                              window_);
    }
  }
  void set_others(double packets_per_s) { others_ = packets_per_s; }
  double window() const { return window_; }

  RateHold hold{kMaxWindow};
  double arrived = 0;

 private:
  double others_;
  double window_ = 2;
};

TEST(RateHold, the_window_doubles_until_no_more_arrives) {
  Link link(kLink / 10);
  link.play(milliseconds(40));
  EXPECT_TRUE(link.hold.is_exploring());
  EXPECT_DOUBLE_EQ(link.hold.rate(), 0) << "the pacer has no limit meanwhile";
  EXPECT_DOUBLE_EQ(link.window(), 16);
  link.play(milliseconds(300));
  EXPECT_FALSE(link.hold.is_exploring());
  EXPECT_GT(link.hold.link_rate(), 0.75 * kLink);
  EXPECT_LE(link.hold.link_rate(), kLink);
}

TEST(RateHold, beside_a_sender_that_takes_the_rest_three_fifths_arrive_whatever_is_lost) {
  Link link(kLink / 10);
  link.play(milliseconds(400));
  link.set_others(0.45 * kLink);  // A twentieth too much, so that some is lost in each round.
  link.play(milliseconds(150));
  EXPECT_NEAR(link.arrived / link.hold.link_rate(), 0.6, 0.05);
}

TEST(RateHold, what_others_leave_is_used_and_given_back) {
  Link link(kLink / 2);
  link.play(milliseconds(400));
  ASSERT_FALSE(link.hold.is_exploring());
  link.set_others(0);
  link.play(milliseconds(150));
  EXPECT_GT(link.arrived, 0.9 * link.hold.link_rate());
  link.set_others(kLink / 2);
  link.play(milliseconds(26));
  EXPECT_LT(link.hold.rate(), 0.8 * link.hold.link_rate());
}

TEST(RateHold, the_link_is_explored_again) {
  Link link(2 * kLink);  // Others that give no way for now.
  link.play(milliseconds(400));
  ASSERT_FALSE(link.hold.is_exploring());
  const double known = link.hold.link_rate();
  EXPECT_LT(known, 0.7 * kLink);
  link.set_others(0.3 * kLink);
  link.play(seconds(2));
  EXPECT_GT(link.hold.link_rate(), 1.2 * known);
}

TEST(RateHold, in_a_crowd_it_wants_half) {
  Link link(kLink / 10);
  link.play(milliseconds(400));
  ASSERT_FALSE(link.hold.is_exploring());
  const double before = link.hold.rate();
  link.set_others(kLink);  // As of others that hold rates.
  link.play(milliseconds(200));
  EXPECT_LT(link.hold.rate(), 0.7 * before);
}

}  // namespace
}  // namespace harp::rate_hold_test
