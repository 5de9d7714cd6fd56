// BBR, version 1 (draft-cardwell-iccrg-bbr-congestion-control-00): sends at the most that was
// delivered in ten round trips, with at most twice what the path holds in flight, and takes no
// notice of loss but for the first round trip after it.
//
// Startup, drain, the eight phases of ProbeBW, and ProbeRTT (four packets for 200 ms, when no
// shorter round trip was seen for ten seconds) are as in the draft; so is the room for what a host
// sends and receives in batches, three times what leaves at once. Left out: the sampler's marks of
// an application that has nothing to send, as this one always has, and the detection of policers.
#pragma once

#include <array>
#include <cstdint>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "sim/tcp_flow.hpp"

namespace harp::sim {

class TcpBbr final : public TcpControl {
 public:
  enum class State : std::uint8_t { kStartup, kDrain, kProbeBw, kProbeRtt };

  explicit TcpBbr(std::uint64_t seed) : rng_(seed) {}

  void on_ack(const TcpAck& ack) override;
  void on_congestion(Time now, std::uint32_t in_flight) override;
  void on_recovered() override;
  void on_timeout(Time now) override;
  double window_packets() const override { return window_; }
  double pacing_rate() const override { return pacing_rate_; }
  std::uint32_t burst_packets() const override;

  State state() const { return state_; }
  /// Packets per second.
  double bandwidth() const;
  Duration min_rtt() const { return min_rtt_; }

 private:
  void update_round(const TcpAck& ack);
  void update_min_rtt(const TcpAck& ack);
  void update_state(const TcpAck& ack);
  void update_phase(const TcpAck& ack);
  void update_window(const TcpAck& ack);
  void check_full_pipe();
  void enter_probe_bw(Time now);
  void probe_rtt(const TcpAck& ack);
  /// What the path holds times `gain`, and room for batches.
  double target(double gain) const;
  void save_window();

  static constexpr std::size_t kRounds = 10;

  Rng rng_;
  State state_ = State::kStartup;
  double window_ = 10;
  double pacing_rate_ = 0;
  double pacing_gain_ = 2.89;
  double window_gain_ = 2.89;
  std::array<double, kRounds> rates_{};  ///< The best of each of the last rounds.
  std::uint64_t round_ = 0;
  std::uint64_t round_ends_ = 0;  ///< It counts packets delivered.
  std::uint64_t delivered_ = 0;
  bool round_begins_ = false;
  Duration min_rtt_ = Duration::max();
  Time min_rtt_at_{};
  double full_rate_ = 0;
  int full_rounds_ = 0;
  bool is_full_ = false;
  std::size_t phase_ = 0;
  Time phase_at_{};
  bool was_loss_ = false;  ///< This phase had one.
  Time probe_ends_ = kNever;
  bool probe_round_is_over_ = false;
  double saved_window_ = 0;
  bool in_recovery_ = false;
  bool conserves_ = false;  ///< The first round of a recovery: one packet leaves for each arrived.
};

}  // namespace harp::sim
