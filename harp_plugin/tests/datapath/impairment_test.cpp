#include "datapath/impairment.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/packets.hpp"

namespace harp::impairment_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t kBytes = 1500;
constexpr Time kStart{milliseconds(5)};

/// Fates of `count` packets, one each microsecond, over four paths.
std::vector<std::optional<Impairment::Fate>> fates(Impairment& link, int count) {
  std::vector<std::optional<Impairment::Fate>> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(link.decide(static_cast<std::size_t>(i % 4), kBytes, kStart + microseconds(i)));
  }
  return all;
}

std::size_t lost(const std::vector<std::optional<Impairment::Fate>>& all) {
  std::size_t count = 0;
  for (const auto& fate : all) {
    count += fate ? 0 : 1;
  }
  return count;
}

TEST(Impairment, shares_of_packets_are_what_was_asked_for) {
  constexpr int kPackets = 100'000;
  constexpr double kShare = 0.05;
  constexpr double kBound = 0.005;  // Seven standard deviations.
  const auto share = [](std::size_t count) { return static_cast<double>(count) / kPackets; };
  {
    Impairment link({.loss = kShare}, 3);
    EXPECT_NEAR(share(lost(fates(link, kPackets))), kShare, kBound);
  }
  ImpairmentConfig config;
  config.delay = milliseconds(1);
  config.duplicate = kShare;
  config.corrupt = 2 * kShare;
  config.detour = 3 * kShare;
  config.detour_delay = milliseconds(10);
  Impairment link(config, 4);
  std::size_t copies = 0;
  std::size_t damaged = 0;
  std::size_t late = 0;
  const auto all = fates(link, kPackets);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i]) << "nothing is lost";
    const Time straight = kStart + microseconds(i) + config.delay;
    EXPECT_GE(all[i]->at, straight);
    EXPECT_LE(all[i]->at, straight + config.detour_delay);
    copies += all[i]->copy_at ? 1 : 0;
    damaged += all[i]->is_damaged ? 1 : 0;
    late += all[i]->at > straight ? 1 : 0;
  }
  EXPECT_NEAR(share(copies), kShare, kBound);
  EXPECT_NEAR(share(damaged), 2 * kShare, 2 * kBound);
  EXPECT_NEAR(share(late), 3 * kShare, 2 * kBound);
}

TEST(Impairment, losses_come_in_bursts_of_limited_length) {
  ImpairmentConfig config;
  config.burst_start = 0.001;
  config.burst_packets = 16;
  Impairment link(config, 5);
  std::size_t run = 0;
  std::size_t longest = 0;
  std::size_t bursts = 0;
  std::size_t all_lost = 0;
  for (const auto& fate : fates(link, 200'000)) {
    bursts += !fate && run == 0 ? 1 : 0;
    run = fate ? 0 : run + 1;
    all_lost += fate ? 0 : 1;
    longest = std::max(longest, run);
  }
  EXPECT_GT(bursts, 100U);
  EXPECT_GT(all_lost, 5 * bursts) << "mean length is 8.5";
  EXPECT_GT(longest, 8U);
  EXPECT_LE(longest, 2 * config.burst_packets) << "one may follow another at once";
}

TEST(Impairment, packets_of_a_path_stay_in_order_unless_they_make_a_detour) {
  ImpairmentConfig config;
  config.delay = microseconds(10);
  config.jitter = milliseconds(1);
  for (const bool has_detours : {false, true}) {
    config.detour = has_detours ? 0.1 : 0;
    config.detour_delay = milliseconds(3);
    Impairment link(config, 9);
    std::vector<Time> last(4);
    int overtaken = 0;
    const auto all = fates(link, 10'000);
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(all[i]);
      overtaken += all[i]->at < last[i % 4] ? 1 : 0;
      last[i % 4] = std::max(last[i % 4], all[i]->at);
    }
    EXPECT_EQ(overtaken > 0, has_detours);
  }
}

TEST(Impairment, dark_paths_lose_everything_and_others_nothing) {
  Impairment link({.dark_paths = 0b0101 | (std::uint64_t{1} << 63)}, 1);
  for (std::size_t path = 0; path < 64; ++path) {
    const bool is_dark = path == 0 || path == 2 || path == 63;
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(link.decide(path, kBytes, kStart).has_value(), !is_dark) << path;
    }
  }
}

TEST(Impairment, a_policer_lets_its_burst_pass_and_then_its_rate) {
  ImpairmentConfig config;
  config.policed_bits_per_s = 8e6;  // One byte each microsecond.
  config.policer_burst_bytes = 10'000;
  Impairment link(config, 1);
  Time now = kStart;
  int passed = 0;
  for (int i = 0; i < 100; ++i) {
    passed += link.decide(0, 1000, now) ? 1 : 0;
  }
  EXPECT_EQ(passed, 10) << "the bucket is full at first";
  passed = 0;
  for (int i = 0; i < 10'000; ++i) {  // Ten times the rate.
    now += microseconds(100);
    passed += link.decide(0, 1000, now) ? 1 : 0;
  }
  EXPECT_NEAR(passed, 1000, 10);
  now += std::chrono::seconds(10);
  passed = 0;
  for (int i = 0; i < 100; ++i) {
    passed += link.decide(0, 1000, now) ? 1 : 0;
  }
  EXPECT_EQ(passed, 10) << "a pause fills the bucket, not more";
}

TEST(Impairment, a_rate_queues_what_it_can_hold_and_drops_the_rest) {
  ImpairmentConfig config;
  config.bits_per_s = 8e6;  // A packet of 1000 bytes takes a millisecond.
  config.queue_packets = 5;
  Impairment link(config, 1);
  std::vector<Time> arrivals;
  for (int i = 0; i < 20; ++i) {
    if (const auto fate = link.decide(static_cast<std::size_t>(i % 4), 1000, kStart)) {
      arrivals.push_back(fate->at);
    }
  }
  ASSERT_EQ(arrivals.size(), config.queue_packets + 1) << "five wait while one is sent";
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    EXPECT_EQ(arrivals[i], kStart + milliseconds(i + 1));
  }
  const auto later = link.decide(0, 1000, kStart + milliseconds(100));
  ASSERT_TRUE(later);
  EXPECT_EQ(later->at, kStart + milliseconds(101)) << "an idle link is not in debt";
}

TEST(Impairment, damage_always_changes_the_packet) {
  Impairment link({}, 11);
  std::set<std::size_t> lengths;
  for (const std::size_t bytes : {1U, 2U, 40U, 1500U}) {
    const PacketBytes before = pattern(bytes, bytes);
    for (int i = 0; i < 20'000; ++i) {
      PacketBytes packet = before;
      link.damage(packet);
      ASSERT_NE(packet, before) << bytes;
      ASSERT_LE(packet.size(), bytes + 64);
      lengths.insert(packet.size());
    }
  }
  EXPECT_GT(lengths.size(), 1000U) << "lengths are damaged too";
}

}  // namespace
}  // namespace harp::impairment_test
