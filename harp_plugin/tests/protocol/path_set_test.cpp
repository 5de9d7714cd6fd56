#include "protocol/path_set.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "base/rng.hpp"

namespace harp::path_set_test {
namespace {

using std::chrono::milliseconds;

constexpr Time kStart{std::chrono::seconds(1)};
constexpr auto kIdle = [](PathIndex) { return 0U; };

TEST(PathSet, spreads_over_all_paths_and_prefers_fast_ones) {
  PathSet paths(4, 4);
  for (PathIndex path = 0; path < 4; ++path) {
    paths.at(path).rtt.add_sample(milliseconds(path == 2 ? 10 : 1), milliseconds(10), kStart);
  }
  Rng rng(1);
  std::array<int, 4> chosen{};
  for (int i = 0; i < 4000; ++i) {
    ++chosen.at(paths.choose(rng, kMaxPaths, kIdle));
  }
  for (const std::size_t fast : {0U, 1U, 3U}) {
    EXPECT_GT(chosen.at(fast), 900);
  }
  EXPECT_LT(chosen[2], 400) << "only where it was drawn twice";
}

TEST(PathSet, a_retransmission_avoids_the_path_that_lost_the_packet) {
  PathSet paths(2, 2);
  Rng rng(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(paths.choose(rng, 1, kIdle), 0);
  }
  const PathSet single(1, 1);
  EXPECT_EQ(single.choose(rng, 0, kIdle), 0);
}

TEST(PathSet, three_timeouts_while_others_work_are_a_quarantine_and_a_sign_of_life_ends_it) {
  PathSet paths(2, 2);
  paths.at(0).next_seq = 100;
  paths.at(1).next_seq = 100;
  paths.on_report(1, 5, kStart + milliseconds(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(paths.at(0).in_quarantine);
    EXPECT_TRUE(paths.on_timeout(0, kStart, kStart + milliseconds(3), milliseconds(2)));
  }
  EXPECT_TRUE(paths.at(0).in_quarantine);
  EXPECT_EQ(paths.usable_count(), 1U);
  const Time probe_at = paths.next_probe_at();
  EXPECT_NE(probe_at, kNever);
  EXPECT_EQ(paths.take_probe(probe_at - Duration(1)), kNoPath);
  EXPECT_EQ(paths.take_probe(probe_at), PathIndex{0});
  EXPECT_GT(paths.next_probe_at() - probe_at, probe_at - kStart - milliseconds(3));
  paths.on_alive(0, probe_at + milliseconds(1));
  EXPECT_FALSE(paths.at(0).in_quarantine);
  EXPECT_EQ(paths.next_probe_at(), kNever);
}

TEST(PathSet, no_path_is_blamed_when_all_are_dark) {
  PathSet paths(2, 2);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(paths.on_timeout(0, kStart, kStart + milliseconds(3), milliseconds(2)));
  }
  EXPECT_EQ(paths.usable_count(), 2U);
}

TEST(PathSet, reports_of_the_past_or_the_future_are_no_news) {
  PathSet paths(1, 1);
  paths.at(0).next_seq = 10;
  EXPECT_TRUE(paths.on_report(0, 4, kStart));
  EXPECT_FALSE(paths.on_report(0, 4, kStart));
  EXPECT_FALSE(paths.on_report(0, 3, kStart));
  EXPECT_FALSE(paths.on_report(0, 10, kStart)) << "was never sent";
  EXPECT_TRUE(paths.on_report(0, 9, kStart));
}

TEST(PathSet, a_path_that_comes_astray_moves_until_every_flow_was_tried) {
  PathSet paths(2, 4);
  EXPECT_EQ(paths.at(0).flow, 0);
  EXPECT_EQ(paths.at(1).flow, 1);
  paths.at(0).next_seq = 11;
  EXPECT_TRUE(paths.on_astray(0, 10));
  EXPECT_EQ(paths.at(0).flow, 2) << "one that nobody has";
  EXPECT_FALSE(paths.on_astray(0, 10)) << "sent before it moved";
  paths.at(0).next_seq = 21;
  EXPECT_FALSE(paths.on_astray(0, 21)) << "never sent";
  EXPECT_TRUE(paths.on_astray(0, 11)) << "the first one on the new flow";
  EXPECT_EQ(paths.at(0).flow, 3);
  paths.at(1).next_seq = 5;
  EXPECT_FALSE(paths.on_astray(1, 4)) << "all were tried";
  EXPECT_EQ(paths.at(1).flow, 1);
}

TEST(PathSet, where_there_are_fewer_flows_than_paths_they_are_shared) {
  PathSet paths(5, 2);
  for (PathIndex path = 0; path < 5; ++path) {
    EXPECT_EQ(paths.at(path).flow, path % 2);
    EXPECT_FALSE(paths.on_astray(path, 0));
  }
}

}  // namespace
}  // namespace harp::path_set_test
