// How many packets a session may have in flight, and how fast they leave.
//
// The signal is delay, as in Swift (Kumar et al., "Swift: Delay is Simple and Effective for
// Congestion Control in the Datacenter", SIGCOMM 2020): clouds hide ECN marks, and drop only when a
// shaper is full. Decisions fall once per round trip, on the *least* queueing delay seen in it:
// jitter of single packets, and one slow path of several, do not look like a standing queue.
//
// Loss with a queue is congestion and multiplies the window by 0.7. Loss without a queue is a
// policer (a token bucket that drops what is too fast) or a bad wire. Halving again and again would
// be wrong for both: where more than 2% of a round was lost, pacing is capped at 0.98 of the rate
// that was delivered for ten rounds, then a quarter more is tried for one. Less loss than that is
// ignored.
//
// What waits on the peer's host until its process looks is no queue of the network: delay there may
// be the milliseconds of a process that has no core. Yet its buffer has an end, which the peer
// tells: the rate times the wait is what lies in it on average (Little's law), and twice that at
// worst, as who has waited for his core sends much at once. More than the buffer holds shrinks the
// window as Swift's endpoint delay does.
//
// A session that starts while others keep a queue standing would take it for the path's own delay.
// The window therefore shrinks for some rounds now and then, at all sessions together
// (competition.hpp). Kernel TCP does not yield to delay, so that a session beside it is left with
// little; where the limits say `competes`, it takes a share of such a link.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "protocol/competition.hpp"

namespace harp {

/// What was seen between sending a packet and its acknowledgement.
struct CongestionRound {
  Duration elapsed{};
  std::uint64_t delivered_bytes = 0;
  std::uint32_t delivered_packets = 0;
  std::uint32_t lost_packets = 0;
  /// Sending stopped for the window or the pacer, not for want of data.
  bool window_was_used = false;
  Duration peer_wait{};  ///< Packets lay on the peer's host for so long, at most.
};

class Congestion {
 public:
  struct Limits {
    double initial_packets = 32;
    double max_packets = 4096;
    Duration min_allowance{50000};  ///< Queueing delay that is never called congestion.
    bool competes = false;  ///< With those who keep a queue full, instead of yielding to them.
  };

  explicit Congestion(const Limits& limits);

  /// What the peer's host holds until its process looks; 0: not known, no limit.
  void set_peer_buffer(std::uint32_t bytes) { peer_buffer_bytes_ = bytes; }

  /// `queue_delay` is the round-trip time above the path's minimum; negative where there is no
  /// sample.
  void on_ack(std::uint32_t packets, Duration queue_delay, Duration min_rtt, bool window_is_used);
  void on_round(const CongestionRound& round, Duration smoothed_rtt, Duration min_rtt);
  /// Nothing was acknowledged on any path for a whole retransmission timeout.
  void on_timeout();
  /// The first answer since. `was_spurious`: what timed out had arrived, and the peer was slow to
  /// say so; then it did not happen (as RFC 4015 does for TCP).
  void end_timeout(bool was_spurious);

  double window_packets() const;
  bool in_slow_start() const { return window_ < threshold_; }
  const Competition& competition() const { return competition_; }
  bool rate_is_capped() const { return capped_rounds_ > 0; }
  /// Bytes per second at which packets of `packet_bytes` may leave; 0 where nothing is known yet.
  double pacing_rate(Duration smoothed_rtt, std::size_t packet_bytes) const;

 private:
  Duration allowance(Duration min_rtt) const;
  void set_window(double packets);
  /// `excess`: what is too much, as a part of all there is.
  void shrink(double excess);
  void leave_slow_start() { threshold_ = 0; }
  /// Whether it does; then the window is as competition wants it.
  bool competition_decides(const CompetitionRound& round);
  void cap_rate(double rate, double delivered_packets_per_s, Duration min_rtt);

  Limits limits_;
  Competition competition_;
  double window_;
  double threshold_;  ///< Slow start below it.
  double cap_bytes_per_s_ = 0;
  double peer_buffer_bytes_ = 0;
  double probe_window_ = 0;  ///< Window for the round after a cap.
  double last_rate_ = 0;
  int capped_rounds_ = 0;
  double window_before_timeout_ = 0;  ///< 0: there is none to undo.
  double threshold_before_timeout_ = 0;
  std::uint32_t delay_samples_ = 0;
  Duration min_delay_ = Duration::max();  ///< The least of this round.
  Duration max_delay_{};
};

}  // namespace harp
