#include "protocol/ack_tracker.hpp"

#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

namespace harp::ack_tracker_test {
namespace {

using std::chrono::microseconds;

constexpr Time kStart{std::chrono::seconds(1)};
constexpr Duration kDelay = microseconds(25);

Header data(PathSeq path_seq, std::uint8_t flags = 0, PathIndex path = 0) {
  return {.flags = flags, .path = path, .path_seq = path_seq, .len = 1408, .tx_time = 7};
}

TEST(AckTracker, an_ordinary_packet_waits_for_company) {
  AckTracker acks(kDelay);
  EXPECT_EQ(acks.due_at(), kNever);
  acks.on_data(data(1), false, {}, kStart);
  EXPECT_EQ(acks.due_at(), kStart + kDelay);
  acks.on_data(data(2), false, {}, kStart + microseconds(10));
  EXPECT_EQ(acks.due_at(), kStart + kDelay) << "the first packet sets the time";
}

TEST(AckTracker, what_the_sender_waits_for_is_answered_at_once) {
  for (const std::uint8_t flags : {flag::kLast, flag::kAckReq}) {
    AckTracker acks(kDelay);
    acks.on_data(data(1, flags), false, {}, kStart);
    EXPECT_EQ(acks.due_at(), kStart);
  }
}

TEST(AckTracker, a_hole_in_a_paths_order_and_a_duplicate_are_answered_at_once) {
  AckTracker acks(kDelay);
  acks.on_data(data(2), false, {}, kStart);
  EXPECT_EQ(acks.due_at(), kStart);
  AckTracker repeated(kDelay);
  repeated.on_data(data(1), true, {}, kStart);
  EXPECT_EQ(repeated.due_at(), kStart);
}

TEST(AckTracker, other_paths_make_no_holes) {
  AckTracker acks(kDelay);
  acks.on_data(data(1, 0, 0), false, {}, kStart);
  acks.on_data(data(1, 0, 5), false, {}, kStart);
  acks.on_data(data(2, 0, 0), false, {}, kStart);
  EXPECT_EQ(acks.due_at(), kStart + kDelay);
}

TEST(AckTracker, thirty_two_packets_are_enough) {
  AckTracker acks(kDelay);
  for (PathSeq i = 1; i < 32; ++i) {
    acks.on_data(data(i), false, {}, kStart);
  }
  EXPECT_EQ(acks.due_at(), kStart + kDelay);
  acks.on_data(data(32), false, {}, kStart);
  EXPECT_EQ(acks.due_at(), kStart);
}

TEST(AckTracker, reports_the_newest_arrival_of_each_path_and_its_own_delay) {
  AckTracker acks(kDelay);
  acks.on_data(data(3, 0, 2), false, {}, kStart);
  acks.on_data(data(1, 0, 2), false, {}, kStart);
  acks.on_data(data(9, 0, 4), false, {}, kStart);
  AckBody body;
  acks.fill(body, kStart + microseconds(256));
  ASSERT_EQ(body.path_count, 2);
  EXPECT_EQ(body.paths[0], (AckBody::PathReport{.path = 2, .newest = 3}));
  EXPECT_EQ(body.paths[1], (AckBody::PathReport{.path = 4, .newest = 9}));
  EXPECT_EQ(body.echo_path, 4);
  EXPECT_EQ(body.echo_tx_time, 7U);
  EXPECT_EQ(body.echo_delay, 1000U);
  EXPECT_EQ(acks.due_at(), kNever);
}

TEST(AckTracker, counts_retransmissions_that_were_not_needed_but_not_tail_probes) {
  AckTracker acks(kDelay);
  acks.on_data(data(1), true, {}, kStart);
  acks.on_data(data(2, flag::kRetx | flag::kAckReq), true, {}, kStart);
  acks.on_data(data(3, flag::kRetx), false, {}, kStart);
  AckBody body;
  acks.fill(body, kStart);
  EXPECT_EQ(body.spurious, 0U);
  acks.on_data(data(4, flag::kRetx), true, {}, kStart);
  acks.fill(body, kStart);
  EXPECT_EQ(body.spurious, 1U);
}

TEST(AckTracker, with_more_paths_than_fit_every_one_is_reported_in_turn) {
  AckTracker acks(kDelay);
  for (PathIndex path = 0; path < 20; ++path) {
    acks.on_data(data(1, 0, path), false, {}, kStart);
  }
  std::uint64_t reported = 0;
  for (int i = 0; i < 3; ++i) {
    AckBody body;
    acks.fill(body, kStart);
    for (std::size_t at = 0; at < body.path_count; ++at) {
      reported |= std::uint64_t{1} << body.paths[at].path;
    }
  }
  EXPECT_EQ(reported, (std::uint64_t{1} << 20) - 1);
}

TEST(AckTracker, answers_to_a_sender_that_repeats_itself_change_their_path) {
  AckTracker acks(kDelay);
  acks.on_data(data(1, 0, 3), false, {}, kStart);
  EXPECT_EQ(acks.answer_path(8), 3);
  acks.on_data(data(1, 0, 3), true, {}, kStart);
  EXPECT_EQ(acks.answer_path(8), 4);
  acks.on_data(data(1, 0, 3), true, {}, kStart);
  EXPECT_EQ(acks.answer_path(8), 5);
}

TEST(AckTracker, an_echo_counts_the_time_for_which_nobody_looked) {
  AckTracker acks(kDelay);
  acks.on_data(data(1), false, {.waited = microseconds(512)}, kStart);
  AckBody ack;
  acks.fill(ack, kStart + microseconds(256));
  EXPECT_EQ(from_wire_duration(ack.echo_delay), microseconds(768));
  acks.on_request(data(2), {.waited = microseconds(256)}, kStart);
  acks.fill(ack, kStart);
  EXPECT_EQ(from_wire_duration(ack.echo_delay), microseconds(256));
}

TEST(AckTracker, says_of_each_path_whether_its_newest_packet_came_astray) {
  AckTracker acks(kDelay);
  acks.on_data(data(1, 0, 2), false, {.is_astray = true}, kStart);
  acks.on_data(data(1, 0, 4), false, {}, kStart);
  AckBody ack;
  acks.fill(ack, kStart);
  ASSERT_EQ(ack.path_count, 2);
  EXPECT_TRUE(ack.paths[0].is_astray);
  EXPECT_FALSE(ack.paths[1].is_astray);

  acks.on_data(data(2, 0, 2), false, {}, kStart);
  acks.on_data(data(1, 0, 2), true, {.is_astray = true}, kStart);
  acks.fill(ack, kStart);
  EXPECT_FALSE(ack.paths[0].is_astray) << "an old packet says nothing of the path as it is now";
}

}  // namespace
}  // namespace harp::ack_tracker_test
