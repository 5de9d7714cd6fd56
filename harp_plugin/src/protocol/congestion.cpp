#include "protocol/congestion.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.hpp"
#include "protocol/competition.hpp"

namespace harp {
namespace {

constexpr double kBeta = 0.8;         ///< Swift: how strongly excess delay shrinks the window.
constexpr double kMaxDecrease = 0.4;  ///< Swift: at most this much of it at once.
constexpr double kLossDecrease = 0.7;
constexpr double kIgnoredLoss = 0.02;
constexpr std::uint32_t kEnoughPackets = 16;  ///< Fewer do not make a loss rate.
constexpr std::uint32_t kEnoughSamples = 8;   ///< Fewer do not show a standing queue.
/// A session grows to this part of the peer's buffer, as others may use the buffer, too.
constexpr double kBufferShare = 0.5;
constexpr int kCappedRounds = 10;
constexpr double kCap = 0.98;
constexpr double kProbe = 1.2;
constexpr double kStillGrowing = 1.2;
constexpr double kSlowStartGain = 2.0;
constexpr double kGain = 1.05;

}  // namespace

Congestion::Congestion(const Limits& limits)
    : limits_(limits),
      competition_(limits.competes, limits.min_allowance, limits.max_packets),
      window_(limits.initial_packets),
      threshold_(limits.max_packets) {}

double Congestion::window_packets() const {
  return std::max(window_ * competition_.window_part(), kMinWindow);
}

Duration Congestion::allowance(Duration min_rtt) const {
  return std::max(limits_.min_allowance, min_rtt / 4);
}

void Congestion::set_window(double packets) {
  window_ = std::clamp(packets, kMinWindow, limits_.max_packets);
}

void Congestion::shrink(double excess) {
  leave_slow_start();
  set_window(window_ * std::max(1 - kBeta * excess, 1 - kMaxDecrease));
}

void Congestion::on_ack(std::uint32_t packets,
                        Duration queue_delay,
                        Duration min_rtt,
                        bool window_is_used) {
  if (queue_delay >= Duration::zero()) {
    min_delay_ = std::min(min_delay_, queue_delay);
    max_delay_ = std::max(max_delay_, queue_delay);
    ++delay_samples_;
  }
  if (!in_slow_start()) {
    return;
  }
  if (delay_samples_ >= kEnoughSamples && min_delay_ > allowance(min_rtt)) {
    leave_slow_start();
  } else if (window_is_used) {
    set_window(window_ + packets);
  }
}

void Congestion::on_round(const CongestionRound& round, Duration smoothed_rtt, Duration min_rtt) {
  const Duration allowed = allowance(min_rtt);
  const bool has_delay = delay_samples_ > 0;
  const Duration delay = has_delay ? min_delay_ : Duration::zero();
  const Duration max_delay = max_delay_;
  min_delay_ = Duration::max();
  max_delay_ = {};
  delay_samples_ = 0;

  const double elapsed_s = std::max(seconds(round.elapsed), 1e-9);
  const double rate = static_cast<double>(round.delivered_bytes) / elapsed_s;
  const double packets = round.delivered_packets + round.lost_packets;
  const double lost = packets > 0 ? round.lost_packets / packets : 0;
  const double peer_backlog = 2 * rate * seconds(round.peer_wait);
  const bool fills_peer =
      peer_buffer_bytes_ > 0 && peer_backlog > kBufferShare * peer_buffer_bytes_;
  const bool still_growing = in_slow_start() && rate > kStillGrowing * last_rate_;
  last_rate_ = rate;

  if (competition_decides({.elapsed = round.elapsed,
                           .has_delay = has_delay,
                           .delay = delay,
                           .allowed = allowed,
                           .min_rtt = min_rtt,
                           .delivered_packets = static_cast<double>(round.delivered_packets),
                           .lost_packets = static_cast<double>(round.lost_packets),
                           .lost = lost,
                           .window_was_used = round.window_was_used,
                           .is_starting = in_slow_start(),
                           .window = window_})) {
    return;
  }
  if (capped_rounds_ > 0) {
    --capped_rounds_;
    if (capped_rounds_ == 0) {
      set_window(std::max(window_, probe_window_));
      return;  // The losses of this round belong to the capped rate.
    }
  }
  if (delay > allowed) {
    const double total = seconds(min_rtt + delay);
    shrink(seconds(delay - allowed) / total);
  } else if (fills_peer && peer_backlog > peer_buffer_bytes_) {
    shrink(1 - peer_buffer_bytes_ / peer_backlog);
  } else if ((round.lost_packets > 0 && (delay > allowed / 2 || fills_peer)) ||
             (lost > kIgnoredLoss && packets >= kEnoughPackets && max_delay > allowed)) {
    leave_slow_start();
    set_window(window_ * kLossDecrease);
    competition_.on_loss_beside_queue();
  } else if (lost > kIgnoredLoss && packets >= kEnoughPackets && !still_growing) {
    // A round that took far longer than a round trip was a standstill, and measured nothing.
    const bool has_measured = round.elapsed < 4 * smoothed_rtt;
    if (capped_rounds_ == 0 && round.window_was_used && has_measured) {
      cap_rate(rate, round.delivered_packets / elapsed_s, min_rtt);
    }
  } else if (fills_peer) {
    leave_slow_start();
  } else if (!in_slow_start() && capped_rounds_ == 0 && round.window_was_used) {
    set_window(window_ + (delay < allowed / 4 ? 1 + window_ / 16 : 1));
  }
}

bool Congestion::competition_decides(const CompetitionRound& round) {
  const bool was_competing = competition_.is_competing();
  const std::optional<double> window = competition_.on_round(round);
  if (competition_.is_competing() && !was_competing) {
    leave_slow_start();
    capped_rounds_ = 0;
  }
  if (window) {
    set_window(*window);
  }
  return window.has_value();
}

void Congestion::cap_rate(double rate, double delivered_packets_per_s, Duration min_rtt) {
  leave_slow_start();
  capped_rounds_ = kCappedRounds;
  cap_bytes_per_s_ = kCap * rate;
  probe_window_ = kProbe * delivered_packets_per_s * seconds(min_rtt);
  set_window(std::min(window_, probe_window_));
}

void Congestion::on_timeout() {
  if (window_before_timeout_ == 0) {  // Else it is the next one in a row.
    window_before_timeout_ = window_;
    threshold_before_timeout_ = threshold_;
  }
  threshold_ = std::max(window_ / 2, kMinWindow);
  set_window(kMinWindow);
  capped_rounds_ = 0;
  competition_.on_timeout();
  last_rate_ = 0;
  min_delay_ = Duration::max();
  max_delay_ = {};
  delay_samples_ = 0;
}

void Congestion::end_timeout(bool was_spurious) {
  if (was_spurious && window_before_timeout_ > window_) {
    window_ = window_before_timeout_;
    threshold_ = threshold_before_timeout_;
  }
  window_before_timeout_ = 0;
}

double Congestion::pacing_rate(Duration smoothed_rtt, std::size_t packet_bytes) const {
  if (smoothed_rtt <= Duration::zero()) {
    return 0;
  }
  const double gain = in_slow_start() ? kSlowStartGain : kGain;
  const double rate = gain * window_ * static_cast<double>(packet_bytes) / seconds(smoothed_rtt);
  if (const double held = competition_.held_rate(); held > 0) {
    return std::min(rate, held * static_cast<double>(packet_bytes));
  }
  return capped_rounds_ > 0 ? std::min(rate, cap_bytes_per_s_) : rate;
}

}  // namespace harp
