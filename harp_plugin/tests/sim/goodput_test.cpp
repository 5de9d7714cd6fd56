// How fast a session is under loss, delay, policers and dark paths: in virtual time, so the figures
// are the same on every machine.
//
//   client ==== rate, delay, queue ====> server     data one way, acknowledgements back
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>

#include <gtest/gtest.h>

#include "base/time.hpp"
#include "protocol/session.hpp"
#include "sim/world.hpp"

namespace harp::sim::goodput_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kMessageBytes = 1 << 20;

struct Outcome {
  double goodput_bps = 0;
  std::uint64_t lost_bytes = 0;
  std::uint64_t retransmitted_bytes = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t quarantined = 0;
};

WorldConfig world_of(std::size_t messages, double bits_per_s, Duration one_way) {
  WorldConfig world;
  world.client = session_config(true, 1);
  world.server = session_config(false, 1);
  world.up.bits_per_s = bits_per_s;
  world.up.delay = one_way;
  world.up.queue_packets = 512;
  world.down = world.up;
  world.up_script.sizes.assign(messages, kMessageBytes);
  world.up_script.capacities = world.up_script.sizes;
  return world;
}

Outcome measure(
    const WorldConfig& config, const std::function<void(World&)>& prepare = [](World&) {}) {
  World world(config, nullptr);
  prepare(world);
  EXPECT_TRUE(world.run_until_ended(Time(seconds(300)), 50000000));
  EXPECT_EQ(world.server_traffic.broken(), "");
  EXPECT_EQ(world.client_traffic.failure(), SessionError::kNone);
  EXPECT_TRUE(world.server_traffic.is_done());
  const SessionStats& stats = world.session->stats();
  const double bits = static_cast<double>(config.up_script.sizes.size() * kMessageBytes) * 8;
  const double time_s = harp::seconds(world.server_traffic.done_at().time_since_epoch());
  Outcome outcome{.goodput_bps = bits / time_s,
                  .lost_bytes = world.up.stats().data_bytes_dropped,
                  .retransmitted_bytes = stats.data_bytes_retransmitted,
                  .sent_bytes = stats.data_bytes_sent,
                  .quarantined = stats.paths_quarantined};
  std::printf("  %.0f Mb/s, %.2f MB lost, %.2f MB sent again, %.1f MB sent\n",
              outcome.goodput_bps / 1e6,
              static_cast<double>(outcome.lost_bytes) / 1e6,
              static_cast<double>(outcome.retransmitted_bytes) / 1e6,
              static_cast<double>(outcome.sent_bytes) / 1e6);
  return outcome;
}

TEST(Goodput, one_percent_loss_at_1_gb_per_s_and_10_ms_costs_less_than_a_fifth) {
  WorldConfig config = world_of(200, 1e9, milliseconds(5));
  const Outcome lossless = measure(config);
  EXPECT_GT(lossless.goodput_bps, 0.8e9);
  EXPECT_LT(lossless.retransmitted_bytes, lossless.sent_bytes / 20) << "slow start overshoots once";
  config.up.loss = 0.01;
  const Outcome lossy = measure(config);
  EXPECT_GT(lossy.lost_bytes, 0U);
  EXPECT_GE(lossy.goodput_bps, 0.8 * lossless.goodput_bps);
  EXPECT_LE(lossy.retransmitted_bytes, 3 * lossy.lost_bytes);
}

TEST(Goodput, one_percent_loss_in_both_directions_with_reordering_keeps_the_bounds) {
  WorldConfig config = world_of(200, 1e9, milliseconds(5));
  config.up.loss = 0.01;
  config.down.loss = 0.01;
  config.up.detour = 0.01;
  config.up.detour_delay = milliseconds(1);
  const Outcome lossy = measure(config);
  EXPECT_GE(lossy.goodput_bps, 0.64e9);
  EXPECT_LE(lossy.retransmitted_bytes, 3 * lossy.lost_bytes);
}

TEST(Goodput, a_datacenter_link_is_filled) {
  const Outcome outcome = measure(world_of(100, 1e10, microseconds(25)));
  EXPECT_GT(outcome.goodput_bps, 0.8e10);
}

TEST(Goodput, a_policer_is_followed_and_not_fought) {
  WorldConfig config = world_of(60, 1e10, milliseconds(1));
  config.up.policed_bits_per_s = 2e8;
  config.up.policer_burst_bytes = 50 * 1500;
  const Outcome outcome = measure(config);
  EXPECT_GT(outcome.goodput_bps, 0.6 * 2e8);
  EXPECT_LT(outcome.retransmitted_bytes, outcome.sent_bytes / 5);
}

TEST(Goodput, a_shallow_queue_is_not_overrun_for_long) {
  WorldConfig config = world_of(60, 2e8, milliseconds(1));
  config.up.queue_packets = 50;
  const Outcome outcome = measure(config);
  EXPECT_GT(outcome.goodput_bps, 0.7 * 2e8);
  EXPECT_LT(outcome.retransmitted_bytes, outcome.sent_bytes / 20);
}

TEST(Goodput, two_dark_paths_of_eight_are_left_alone_after_their_first_losses) {
  WorldConfig config = world_of(100, 1e9, milliseconds(1));
  config.up.dark_paths = 0x24;
  const Outcome outcome = measure(config);
  EXPECT_GE(outcome.quarantined, 2U);
  EXPECT_GT(outcome.goodput_bps, 0.7e9);
  EXPECT_LT(outcome.retransmitted_bytes, outcome.sent_bytes / 50);
}

TEST(Goodput, a_dark_path_that_recovers_is_used_again) {
  WorldConfig config = world_of(100, 1e9, milliseconds(1));
  config.up.dark_paths = 1;
  World world(config, nullptr);
  world.simulator.run_until(
      [&] { return world.session->stats().paths_quarantined > 0; }, Time(seconds(10)), 10000000);
  ASSERT_TRUE(world.session->paths().at(0).in_quarantine);
  world.up.config().dark_paths = 0;
  world.simulator.run_until(
      [&] { return !world.session->paths().at(0).in_quarantine; }, Time(seconds(10)), 50000000);
  EXPECT_FALSE(world.session->paths().at(0).in_quarantine);
  const PathSeq before = world.session->paths().at(0).next_seq;
  EXPECT_TRUE(world.run_until_ended(Time(seconds(60)), 50000000));
  EXPECT_GT(world.session->paths().at(0).next_seq, before);
}

TEST(Goodput, heavy_loss_does_not_stop_a_session) {
  WorldConfig config = world_of(20, 1e9, milliseconds(1));
  config.up.loss = 0.2;
  config.down.loss = 0.2;
  const Outcome outcome = measure(config);
  EXPECT_GT(outcome.goodput_bps, 2e7);
  EXPECT_LE(outcome.retransmitted_bytes, 3 * outcome.lost_bytes);
}

/// Processes that have their cores for an eighth of the time, now at once and now not: a round trip
/// takes up to 800 us, of which the network has 50.
Outcome measure_on_shared_cores(WorldConfig config, std::size_t buffer_packets) {
  config.server.buffer_bytes = static_cast<std::uint32_t>(buffer_packets * config.server.max_pss);
  return measure(config, [&](World& world) {
    constexpr Duration kTurn = microseconds(50);
    const Time start = world.simulator.now() + milliseconds(5);  // Connected by then.
    world.client.share_core(start, kTurn, 8 * kTurn, buffer_packets);
    world.server.share_core(start, kTurn, 9 * kTurn, buffer_packets);
  });
}

TEST(Goodput, processes_that_share_their_cores_are_no_congested_network) {
  const Outcome outcome = measure_on_shared_cores(world_of(100, 1e10, microseconds(25)), 4096);
  EXPECT_GT(outcome.goodput_bps, 0.15e10);
  EXPECT_LT(outcome.retransmitted_bytes, outcome.sent_bytes / 100);
}

TEST(Goodput, a_small_buffer_of_a_process_that_shares_its_core_is_not_overrun_for_long) {
  const Outcome outcome = measure_on_shared_cores(world_of(100, 1e10, microseconds(25)), 50);
  EXPECT_GT(outcome.goodput_bps, 0.07e10);
  EXPECT_LT(outcome.retransmitted_bytes, outcome.sent_bytes / 100);
}

}  // namespace
}  // namespace harp::sim::goodput_test
