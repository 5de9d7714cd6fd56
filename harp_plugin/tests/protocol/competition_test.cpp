#include "protocol/competition.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

#include "protocol/congestion.hpp"

namespace harp::competition_test {
namespace {

using std::chrono::milliseconds;

constexpr Duration kRtt = milliseconds(1);
constexpr double kLinkPackets = 500;  ///< The link carries so many in kRtt.

/// What a round trip is above the path's where `packets` of ours and `others` are in flight.
Duration queue_delay(double packets, double others) {
  const double round_trip_ns = (packets + others) / kLinkPackets * 1e6;
  return std::max(Duration(static_cast<std::int64_t>(round_trip_ns)) - kRtt, Duration::zero());
}

/// A round on a full link in which others have so many packets in flight.
void play_full_link(Congestion& congestion, double others) {
  const Duration delay = queue_delay(congestion.window_packets(), others);
  for (int i = 0; i < 16; ++i) {
    congestion.on_ack(0, delay, kRtt, true);
  }
  congestion.on_round({.elapsed = kRtt,
                       .delivered_bytes = 750000,
                       .delivered_packets = 500,
                       .lost_packets = 0,
                       .window_was_used = true},
                      kRtt + delay,
                      kRtt);
}

Congestion beyond_slow_start() {
  Congestion congestion({.initial_packets = 1000, .competes = true});
  play_full_link(congestion, 0);
  EXPECT_FALSE(congestion.in_slow_start());
  for (int round = 0; round < 20 && congestion.competition().is_probing(); ++round) {
    play_full_link(congestion, 0);
  }
  EXPECT_FALSE(congestion.competition().is_probing());
  EXPECT_FALSE(congestion.competition().is_competing());
  return congestion;
}

TEST(Competition, nobody_competes_who_was_not_asked_to) {
  Congestion congestion({.initial_packets = 1000});
  for (int round = 0; round < 2000; ++round) {
    play_full_link(congestion, 1500);
    EXPECT_FALSE(congestion.competition().is_competing());
  }
  EXPECT_DOUBLE_EQ(congestion.window_packets(), kMinWindow) << "has yielded whatever it had";
}

TEST(Competition, everybody_shrinks_the_window_now_and_then_to_see_the_path) {
  Congestion congestion({.initial_packets = 1000});
  int dips = 0;
  bool was_probing = false;
  for (int round = 0; round < 600; ++round) {
    play_full_link(congestion, 0);
    const bool is_probing = congestion.competition().is_probing();
    dips += is_probing && !was_probing ? 1 : 0;
    was_probing = is_probing;
  }
  EXPECT_GE(dips, 3);
  EXPECT_LE(dips, 6);
}

TEST(Competition, the_window_is_held_at_the_end_of_slow_start_to_see_whose_the_queue_is) {
  Congestion congestion({.initial_packets = 1000, .competes = true});
  play_full_link(congestion, 0);
  EXPECT_FALSE(congestion.in_slow_start());
  EXPECT_DOUBLE_EQ(congestion.window_packets(), 1000);
  EXPECT_TRUE(congestion.competition().is_probing());
}

TEST(Competition, a_queue_that_goes_with_the_window_is_its_own) {
  Congestion congestion({.initial_packets = 1000, .competes = true});
  for (int round = 0; round < 200; ++round) {
    play_full_link(congestion, 0);
    EXPECT_FALSE(congestion.competition().is_competing());
  }
  EXPECT_LT(queue_delay(congestion.window_packets(), 0), milliseconds(1));
}

TEST(Competition, a_queue_that_stays_is_others_and_the_window_grows_until_half_of_it_is_its_own) {
  Congestion congestion = beyond_slow_start();
  constexpr double kOthers = 1500;
  for (int round = 0; round < 2000 && !congestion.competition().is_competing(); ++round) {
    play_full_link(congestion, kOthers);
  }
  EXPECT_TRUE(congestion.competition().is_competing());
  for (int round = 0; round < 2000; ++round) {
    play_full_link(congestion, kOthers);
  }
  EXPECT_TRUE(congestion.competition().is_competing());
  const double share = congestion.window_packets() / (congestion.window_packets() + kOthers);
  EXPECT_GT(share, 0.4);
  EXPECT_LT(share, 0.7);
}

TEST(Competition, a_window_that_cannot_shrink_asks_whether_a_queue_stands_not_whether_it_falls) {
  Congestion congestion = beyond_slow_start();
  while (congestion.window_packets() > kMinWindow) {
    play_full_link(congestion, 1500);
  }
  // The others' queue swings, and is short in each dip.
  bool was_probing = false;
  for (int round = 0; round < 4000 && !congestion.competition().is_competing(); ++round) {
    play_full_link(congestion, was_probing ? 900 : 2000);
    was_probing = congestion.competition().is_probing();
  }
  EXPECT_TRUE(congestion.competition().is_competing());
}

/// Rounds on a full link whose queue holds but 2 ms, and overflows whatever this end does.
void overflow(Congestion& congestion, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < 16; ++i) {
      congestion.on_ack(0, milliseconds(2), kRtt, true);
    }
    congestion.on_round({.elapsed = 3 * kRtt,
                         .delivered_bytes = 15000,
                         .delivered_packets = 10,
                         .lost_packets = 1,
                         .window_was_used = true},
                        3 * kRtt,
                        kRtt);
  }
}

TEST(Competition, where_others_make_a_short_queue_overflow_a_rate_is_held_until_they_have_gone) {
  Congestion congestion = beyond_slow_start();
  overflow(congestion, 600);
  const Competition& competition = congestion.competition();
  ASSERT_TRUE(competition.is_competing());
  EXPECT_TRUE(competition.is_holding());
  EXPECT_GT(competition.held_rate(), 0);
  const double limit = congestion.pacing_rate(3 * kRtt, 1500);
  EXPECT_LE(limit, competition.held_rate() * 1500);
  for (int round = 0; round < 500; ++round) {
    for (int i = 0; i < 16; ++i) {
      congestion.on_ack(0, Duration{}, kRtt, true);
    }
    congestion.on_round({.elapsed = kRtt,
                         .delivered_bytes = 15000,
                         .delivered_packets = 10,
                         .lost_packets = 0,
                         .window_was_used = true},
                        kRtt,
                        kRtt);
  }
  EXPECT_FALSE(competition.is_holding());
  EXPECT_FALSE(competition.is_competing());
}

TEST(Competition, a_queue_that_becomes_longer_while_the_rate_is_explored_was_not_full) {
  Congestion congestion = beyond_slow_start();
  const Competition& competition = congestion.competition();
  for (int round = 0; round < 600 && !competition.is_holding(); ++round) {
    overflow(congestion, 1);
  }
  ASSERT_TRUE(competition.is_holding());
  const double window = congestion.window_packets();
  for (int round = 0; round < 6 && competition.is_holding(); ++round) {
    play_full_link(congestion, 5000);  // A round trip of 10 ms.
  }
  EXPECT_FALSE(competition.is_holding());
  EXPECT_LE(congestion.window_packets(), std::max(window, 4.0));
}

TEST(Competition, when_the_others_have_gone_the_queue_goes_too) {
  Congestion congestion = beyond_slow_start();
  for (int round = 0; round < 2000; ++round) {
    play_full_link(congestion, 1500);
  }
  ASSERT_TRUE(congestion.competition().is_competing());
  for (int round = 0; round < 300; ++round) {
    play_full_link(congestion, 0);
  }
  EXPECT_FALSE(congestion.competition().is_competing());
  EXPECT_LT(queue_delay(congestion.window_packets(), 0), milliseconds(1));
}

}  // namespace
}  // namespace harp::competition_test
