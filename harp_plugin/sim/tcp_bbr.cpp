#include "sim/tcp_bbr.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "sim/tcp_flow.hpp"

namespace harp::sim {
namespace {

constexpr double kHighGain = 2.89;
constexpr double kWindowGain = 2;
constexpr double kMinWindow = 4;
constexpr auto kPhases = std::to_array<double>({1.25, 0.75, 1, 1, 1, 1, 1, 1});
constexpr Duration kMinRttWindow = std::chrono::seconds(10);
constexpr Duration kProbeRttTime = std::chrono::milliseconds(200);
constexpr double kMaxBurst = 65536.0 / kTcpSegmentBytes;

}  // namespace

double TcpBbr::bandwidth() const {
  return *std::ranges::max_element(rates_);
}

std::uint32_t TcpBbr::burst_packets() const {
  return static_cast<std::uint32_t>(std::clamp(pacing_rate_ * 1e-3, 1.0, kMaxBurst));
}

double TcpBbr::target(double gain) const {
  if (min_rtt_ == Duration::max()) {
    return 10;
  }
  return std::max(gain * bandwidth() * seconds(min_rtt_) + 3.0 * burst_packets(), kMinWindow);
}

void TcpBbr::save_window() {
  const bool is_whole = !in_recovery_ && state_ != State::kProbeRtt;
  saved_window_ = is_whole ? window_ : std::max(saved_window_, window_);
}

void TcpBbr::on_ack(const TcpAck& ack) {
  delivered_ = ack.delivered;
  update_round(ack);
  update_phase(ack);
  check_full_pipe();
  update_state(ack);
  update_min_rtt(ack);
  const double rate = pacing_gain_ * bandwidth();
  if (is_full_ || rate > pacing_rate_) {
    pacing_rate_ = rate;
  }
  update_window(ack);
}

void TcpBbr::update_round(const TcpAck& ack) {
  round_begins_ = ack.delivered_when_sent >= round_ends_;
  if (round_begins_) {
    round_ends_ = ack.delivered;
    ++round_;
    rates_[round_ % kRounds] = 0;
    conserves_ = false;
  }
  double& best = rates_[round_ % kRounds];
  best = std::max(best, ack.rate);
}

void TcpBbr::update_phase(const TcpAck& ack) {
  was_loss_ = was_loss_ || ack.lost > 0;
  if (state_ != State::kProbeBw) {
    return;
  }
  const bool has_lasted = ack.now - phase_at_ > min_rtt_;
  const double gain = kPhases[phase_];
  bool is_over = has_lasted;
  if (gain > 1) {
    is_over = has_lasted && (was_loss_ || ack.in_flight >= target(gain));
  } else if (gain < 1) {
    is_over = has_lasted || ack.in_flight <= target(1);
  }
  if (is_over) {
    phase_ = (phase_ + 1) % kPhases.size();
    phase_at_ = ack.now;
    was_loss_ = false;
    pacing_gain_ = kPhases[phase_];
  }
}

void TcpBbr::check_full_pipe() {
  if (is_full_ || !round_begins_) {
    return;
  }
  if (bandwidth() >= 1.25 * full_rate_) {
    full_rate_ = bandwidth();
    full_rounds_ = 0;
  } else {
    is_full_ = ++full_rounds_ >= 3;
  }
}

void TcpBbr::update_state(const TcpAck& ack) {
  if (state_ == State::kStartup && is_full_) {
    state_ = State::kDrain;
    pacing_gain_ = 1 / kHighGain;
    window_gain_ = kHighGain;
  }
  if (state_ == State::kDrain && ack.in_flight <= target(1)) {
    enter_probe_bw(ack.now);
  }
}

void TcpBbr::enter_probe_bw(Time now) {
  state_ = State::kProbeBw;
  window_gain_ = kWindowGain;
  // Any phase but the one that drains.
  phase_ = (kPhases.size() - rng_.below(kPhases.size() - 1)) % kPhases.size();
  phase_at_ = now;
  was_loss_ = false;
  pacing_gain_ = kPhases[phase_];
}

void TcpBbr::update_min_rtt(const TcpAck& ack) {
  const bool is_old = min_rtt_ != Duration::max() && ack.now > min_rtt_at_ + kMinRttWindow;
  if (ack.rtt <= min_rtt_ || is_old) {
    min_rtt_ = ack.rtt;
    min_rtt_at_ = ack.now;
  }
  if (is_old && state_ != State::kProbeRtt) {
    save_window();
    state_ = State::kProbeRtt;
    pacing_gain_ = 1;
    window_gain_ = 1;
    probe_ends_ = kNever;
  }
  if (state_ == State::kProbeRtt) {
    probe_rtt(ack);
  }
}

void TcpBbr::probe_rtt(const TcpAck& ack) {
  if (probe_ends_ == kNever && ack.in_flight <= kMinWindow) {
    probe_ends_ = ack.now + kProbeRttTime;
    probe_round_is_over_ = false;
    round_ends_ = ack.delivered;
    return;
  }
  probe_round_is_over_ = probe_round_is_over_ || round_begins_;
  if (probe_ends_ != kNever && probe_round_is_over_ && ack.now > probe_ends_) {
    min_rtt_at_ = ack.now;
    window_ = std::max(window_, saved_window_);
    if (is_full_) {
      enter_probe_bw(ack.now);
    } else {
      state_ = State::kStartup;
      pacing_gain_ = kHighGain;
      window_gain_ = kHighGain;
    }
  }
}

void TcpBbr::update_window(const TcpAck& ack) {
  if (conserves_) {
    window_ = std::max(window_, ack.in_flight + 1.0);
  } else {
    const double wanted = target(window_gain_);
    if (is_full_) {
      window_ = std::min(window_ + 1, wanted);
    } else if (window_ < wanted || ack.delivered < 10) {
      window_ += 1;
    }
    window_ = std::max(window_, kMinWindow);
  }
  if (state_ == State::kProbeRtt) {
    window_ = std::min(window_, kMinWindow);
  }
}

void TcpBbr::on_congestion(Time, std::uint32_t in_flight) {
  save_window();
  in_recovery_ = true;
  conserves_ = true;
  window_ = in_flight + 1.0;
  round_ends_ = delivered_;  // A round begins with the recovery.
}

void TcpBbr::on_recovered() {
  in_recovery_ = false;
  conserves_ = false;
  window_ = std::max(window_, saved_window_);
}

void TcpBbr::on_timeout(Time) {
  save_window();
  window_ = 1;
}

}  // namespace harp::sim
