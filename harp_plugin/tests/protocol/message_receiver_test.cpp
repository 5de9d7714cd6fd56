#include "protocol/message_receiver.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace harp::message_receiver_test {
namespace {

using Verdict = MessageReceiver::Verdict;

constexpr std::uint16_t kPss = 64;
constexpr MsgSeq kFirst = 0xffffffff;

struct Bench {
  Bench() : receiver({.max_receives = 4, .eager_packets = 3}), events(16) {
    receiver.start(kFirst, kPss);
  }
  Verdict arrive(MsgSeq msg, std::uint32_t off, std::uint16_t len, bool last, unsigned fill = 1) {
    payload.assign(len, static_cast<std::byte>(fill));
    PacketView packet;
    packet.header = {.flags = last ? flag::kLast : std::uint8_t{0},
                     .msg_seq = msg,
                     .msg_off = off,
                     .len = len,
                     .tag = 5};
    packet.body = payload;
    Placement placement;
    const Verdict verdict = receiver.on_data(packet, events, placement);
    if (verdict == Verdict::kTaken && placement.action == Placement::Action::kCopy) {
      std::memcpy(placement.to, payload.data(), payload.size());
    }
    if (verdict == Verdict::kTaken && placement.action == Placement::Action::kTake) {
      placement.taker.show(placement.msg_off, payload);
    }
    return verdict;
  }
  std::size_t completed() {
    std::size_t count = 0;
    for (Event event; events.pop(event);) {
      ++count;
    }
    return count;
  }

  MessageReceiver receiver;
  EventQueue events;
  std::vector<std::byte> payload;
};

TEST(MessageReceiver, packets_are_placed_at_their_offset_in_any_order) {
  Bench bench;
  std::vector<std::byte> buffer(3 * kPss);
  EXPECT_EQ(bench.receiver.post({.buffer = buffer}, bench.events), Verdict::kTaken);
  EXPECT_EQ(bench.arrive(kFirst, 128, 10, true, 3), Verdict::kTaken);
  EXPECT_EQ(bench.arrive(kFirst, 0, 64, false, 1), Verdict::kTaken);
  EXPECT_EQ(bench.completed(), 0U);
  EXPECT_EQ(bench.arrive(kFirst, 64, 64, false, 2), Verdict::kTaken);
  EXPECT_EQ(bench.completed(), 1U);
  EXPECT_EQ(buffer[0], std::byte{1});
  EXPECT_EQ(buffer[64], std::byte{2});
  EXPECT_EQ(buffer[128], std::byte{3});
  EXPECT_EQ(buffer[138], std::byte{0});
}

/// What a taker was shown: offset, bytes, first byte.
struct Shown {
  std::size_t offset;
  std::size_t bytes;
  std::byte first;
  bool operator==(const Shown&) const = default;
};

void note(void* context, std::size_t offset, const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  static_cast<std::vector<Shown>*>(context)->push_back({offset, bytes, *first});
}

TEST(MessageReceiver, a_taker_sees_each_packet_once_also_those_that_came_before_it) {
  Bench bench;
  std::vector<Shown> shown;
  EXPECT_EQ(bench.arrive(kFirst, 64, 64, false, 2), Verdict::kTaken);
  EXPECT_TRUE(shown.empty());
  const Taker taker{.take = note, .context = &shown, .max_bytes = 138};
  EXPECT_EQ(bench.receiver.post({.taker = taker}, bench.events), Verdict::kTaken);
  EXPECT_EQ(bench.arrive(kFirst, 128, 10, true, 3), Verdict::kTaken);
  EXPECT_EQ(bench.completed(), 0U);
  EXPECT_EQ(bench.arrive(kFirst, 0, 64, false, 1), Verdict::kTaken);
  EXPECT_EQ(bench.completed(), 1U);
  const std::vector<Shown> expected{
      {64, 64, std::byte{2}}, {128, 10, std::byte{3}}, {0, 64, std::byte{1}}};
  EXPECT_EQ(shown, expected);
  EXPECT_EQ(bench.receiver.eager_bytes_copied(), 0U);
}

TEST(MessageReceiver, a_taker_is_shown_no_more_than_it_takes) {
  std::vector<Shown> shown;
  const Taker taker{.take = note, .context = &shown, .max_bytes = 64};
  Bench posted;
  EXPECT_EQ(posted.receiver.post({.taker = taker}, posted.events), Verdict::kTaken);
  EXPECT_EQ(posted.arrive(kFirst, 64, 1, true), Verdict::kTooLong);
  Bench eager;
  EXPECT_EQ(eager.arrive(kFirst, 64, 1, true), Verdict::kTaken);
  EXPECT_EQ(eager.receiver.post({.taker = taker}, eager.events), Verdict::kTooLong);
  EXPECT_TRUE(shown.empty());
}

TEST(MessageReceiver, eager_packets_wait_in_frames_that_are_used_again) {
  Bench bench;
  std::vector<std::byte> buffer(kPss);
  for (MsgSeq i = 0; i < 50; ++i) {
    EXPECT_EQ(bench.arrive(kFirst + i, 0, 7, true, i), Verdict::kTaken) << i;
    EXPECT_EQ(bench.receiver.post({.buffer = buffer}, bench.events), Verdict::kTaken);
    EXPECT_EQ(bench.completed(), 1U);
    EXPECT_EQ(buffer[6], static_cast<std::byte>(i));
  }
  for (MsgSeq i = 50; i < 53; ++i) {
    EXPECT_EQ(bench.arrive(kFirst + i, 0, 7, true), Verdict::kTaken);
  }
  EXPECT_EQ(bench.arrive(kFirst + 53, 0, 7, true), Verdict::kNoRoom);
}

TEST(MessageReceiver, nothing_is_written_beyond_a_receive) {
  Bench bench;
  std::vector<std::byte> buffer(kPss + 3);
  bench.receiver.post({.buffer = buffer}, bench.events);
  EXPECT_EQ(bench.arrive(kFirst, 64, 4, true), Verdict::kTooLong);
  EXPECT_EQ(bench.arrive(kFirst + 1, 0, 64, false), Verdict::kTaken);
  EXPECT_EQ(bench.receiver.post({.buffer = std::span(buffer).first(10)}, bench.events),
            Verdict::kTooLong);
}

TEST(MessageReceiver, packets_that_contradict_others_are_violations) {
  const auto refused = [](auto act) {
    Bench bench;
    std::vector<std::byte> buffer(4 * kPss);
    bench.receiver.post({.buffer = buffer}, bench.events);
    EXPECT_EQ(bench.arrive(kFirst, 64, 64, true), Verdict::kTaken);
    return act(bench) == Verdict::kViolation;
  };
  EXPECT_TRUE(refused([](Bench& b) { return b.arrive(kFirst, 128, 64, true); })) << "two ends";
  EXPECT_TRUE(refused([](Bench& b) { return b.arrive(kFirst, 128, 64, false); }))
      << "beyond the end";
  EXPECT_TRUE(refused([](Bench& b) { return b.arrive(kFirst, 3, 64, false); })) << "unaligned";
  EXPECT_TRUE(refused([](Bench& b) { return b.arrive(kFirst, 0, 60, false); }))
      << "short, not last";
  EXPECT_TRUE(refused([](Bench& b) { return b.arrive(kFirst, 0, 128, false); })) << "beyond PSS";
  EXPECT_TRUE(refused([](Bench& b) {
    EXPECT_EQ(b.arrive(kFirst, 0, 64, false), Verdict::kTaken);
    return b.arrive(kFirst, 0, 64, false);
  })) << "of a message that is complete";
  EXPECT_FALSE(refused([](Bench& b) { return b.arrive(kFirst, 0, 64, false); }));
}

TEST(MessageReceiver, receives_posted_before_the_first_number_is_known_keep_their_order) {
  MessageReceiver receiver({.max_receives = 4, .eager_packets = 3});
  EventQueue events(8);
  std::vector<std::byte> first(8);
  std::vector<std::byte> second(8);
  receiver.post({.buffer = first, .cookie = 1}, events);
  receiver.post({.buffer = second, .cookie = 2}, events);
  receiver.start(0xfffffffe, kPss);
  EXPECT_EQ(receiver.msg_limit(), 0U);
  PacketView packet;
  packet.header = {.flags = flag::kLast, .msg_seq = 0xffffffff};
  Placement placement;
  EXPECT_EQ(receiver.on_data(packet, events, placement), Verdict::kTaken);
  Event event;
  ASSERT_TRUE(events.pop(event));
  EXPECT_EQ(event.cookie, 2U);
}

TEST(MessageReceiver, room_is_reckoned_from_the_oldest_incomplete_message) {
  Bench bench;
  std::vector<std::byte> buffer(8);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(bench.receiver.has_room());
    bench.receiver.post({.buffer = buffer}, bench.events);
  }
  EXPECT_EQ(bench.arrive(kFirst + 2, 0, 1, true), Verdict::kTaken);
  EXPECT_FALSE(bench.receiver.has_room());
  EXPECT_EQ(bench.arrive(kFirst, 0, 1, true), Verdict::kTaken);
  EXPECT_TRUE(bench.receiver.has_room());
}

}  // namespace
}  // namespace harp::message_receiver_test
