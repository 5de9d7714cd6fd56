#include "protocol/pacer.hpp"

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include <gtest/gtest.h>

#include "base/time.hpp"

namespace harp::pacer_test {
namespace {

using std::chrono::microseconds;

constexpr std::size_t kPacket = 1448;
constexpr std::size_t kMuch = 1'000'000;
constexpr double kRate = 1e9;  ///< Bytes per second: a microsecond for 1000 bytes.

/// Packets that leave at `now`.
int burst(Pacer& pacer, Time now, std::size_t waiting_bytes) {
  int sent = 0;
  while (waiting_bytes > 0 && pacer.may_send(now, waiting_bytes)) {
    pacer.on_sent(kPacket, now);
    waiting_bytes -= kPacket < waiting_bytes ? kPacket : waiting_bytes;
    ++sent;
  }
  return sent;
}

TEST(Pacer, without_a_rate_everything_leaves_at_once) {
  Pacer pacer;
  EXPECT_EQ(burst(pacer, Time(microseconds(5)), kMuch), 691);
}

TEST(Pacer, an_empty_bucket_fills_up_before_more_of_much_leaves) {
  Pacer pacer;
  pacer.set_rate(kRate, kPacket);
  const Time start(std::chrono::seconds(1));
  const int first = burst(pacer, start, kMuch);
  EXPECT_EQ(first, 34) << "50 us of the rate";
  const Time again = pacer.ready_at(kMuch);
  EXPECT_EQ(burst(pacer, again - Duration(1), kMuch), 0);
  EXPECT_GT(again - start, microseconds(30));
  EXPECT_GT(burst(pacer, again, kMuch), 20);
}

TEST(Pacer, the_end_of_what_there_is_waits_for_its_own_bytes_only) {
  Pacer pacer;
  pacer.set_rate(kRate, kPacket);
  const Time start(std::chrono::seconds(1));
  (void)burst(pacer, start, kMuch);
  const Duration wait = pacer.ready_at(2 * kPacket) - start;
  EXPECT_LT(wait, microseconds(5));
  EXPECT_GE(wait, microseconds(2));
  EXPECT_EQ(burst(pacer, start + wait, 2 * kPacket), 2);
}

TEST(Pacer, a_burst_is_what_one_segmented_send_takes) {
  for (const auto& [packet_bytes, packets] :
       std::initializer_list<std::pair<std::size_t, int>>{{132, 64}, {1476, 45}, {8452, 7}}) {
    Pacer pacer;
    pacer.set_rate(10 * kRate, packet_bytes);
    EXPECT_EQ(pacer.burst_packets(), packets) << packet_bytes;
    const Time now(std::chrono::seconds(1));
    int sent = 0;
    for (; pacer.may_send(now, kMuch); ++sent) {
      // The end of a message now and then leaves no room for a packet more.
      pacer.on_sent(sent % 50 == 20 ? packet_bytes / 3 : packet_bytes, now);
    }
    EXPECT_EQ(sent, packets) << packet_bytes;
  }
}

TEST(Pacer, keeps_the_rate_of_large_packets_with_late_timers) {
  constexpr std::size_t kLarge = 9000;
  Pacer pacer;
  pacer.set_rate(kRate / 10, kLarge);
  EXPECT_EQ(pacer.burst_packets(), 1);
  Time now(std::chrono::seconds(1));
  const Time start = now;
  for (int sent = 0; sent < 1000;) {
    now = std::max(now, pacer.ready_at(kMuch)) + microseconds(20);
    for (; pacer.may_send(now, kMuch); ++sent) {
      pacer.on_sent(kLarge, now);
    }
  }
  EXPECT_NEAR(1000 * kLarge / seconds(now - start), kRate / 10, 0.01 * kRate / 10);
}

TEST(Pacer, keeps_its_rate_whatever_waits) {
  for (const std::size_t waiting : {kPacket, 4 * kPacket, kMuch}) {
    Pacer pacer;
    pacer.set_rate(kRate, kPacket);
    Time now(std::chrono::seconds(1));
    (void)burst(pacer, now, kMuch);
    const Time start = now;
    double sent = 0;
    while (sent < 1e7) {
      now = pacer.ready_at(waiting);
      sent += static_cast<double>(kPacket) * burst(pacer, now, waiting);
    }
    EXPECT_NEAR(sent / seconds(now - start), kRate, 0.02 * kRate) << waiting;
  }
}

}  // namespace
}  // namespace harp::pacer_test
