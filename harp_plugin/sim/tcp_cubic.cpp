#include "sim/tcp_cubic.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "base/time.hpp"
#include "sim/tcp_flow.hpp"

namespace harp::sim {
namespace {

constexpr double kC = 0.4;
constexpr double kBeta = 0.7;
constexpr double kRenoGrowth = 3 * (1 - kBeta) / (1 + kBeta);
constexpr Duration kMinRttRise = std::chrono::milliseconds(4);
constexpr Duration kMaxRttRise = std::chrono::milliseconds(16);
constexpr std::uint32_t kRttSamples = 8;

}  // namespace

void TcpCubic::on_ack(const TcpAck& ack) {
  if (in_recovery_) {
    return;
  }
  if (in_slow_start()) {
    slow_start(ack);
  } else {
    avoid_congestion(ack);
  }
}

void TcpCubic::slow_start(const TcpAck& ack) {
  if (ack.delivered_when_sent >= round_ends_) {
    round_ends_ = ack.delivered;
    previous_rtt_ = round_rtt_;
    round_rtt_ = Duration::max();
    round_samples_ = 0;
  }
  round_rtt_ = std::min(round_rtt_, ack.rtt);
  ++round_samples_;
  window_ += 1;
  if (round_samples_ >= kRttSamples && previous_rtt_ != Duration::max() &&
      round_rtt_ >= previous_rtt_ + std::clamp(previous_rtt_ / 8, kMinRttRise, kMaxRttRise)) {
    threshold_ = window_;
  }
}

void TcpCubic::avoid_congestion(const TcpAck& ack) {
  if (epoch_start_ == kNever) {
    epoch_start_ = ack.now;
    epoch_window_ = window_;
    reno_ = window_;
    maximum_ = std::max(maximum_, window_);
    cube_root_s_ = std::cbrt((maximum_ - window_) / kC);
  }
  const double since_s = seconds(ack.now - epoch_start_ + ack.rtt) - cube_root_s_;
  const double cubic = kC * since_s * since_s * since_s + maximum_;
  const double target = std::clamp(cubic, window_, 1.5 * window_);
  reno_ += (reno_ >= maximum_ ? 1 : kRenoGrowth) / window_;
  if (cubic < reno_) {
    window_ = std::max(window_, reno_);
  } else {
    window_ += (target - window_) / window_;
  }
}

void TcpCubic::reduce() {
  maximum_ = window_ < maximum_ ? window_ * (1 + kBeta) / 2 : window_;  // Fast convergence.
  threshold_ = std::max(window_ * kBeta, 2.0);
  epoch_start_ = kNever;
}

void TcpCubic::on_congestion(Time, std::uint32_t) {
  reduce();
  window_ = threshold_;
  in_recovery_ = true;
}

void TcpCubic::on_timeout(Time) {
  reduce();
  window_ = 1;
  in_recovery_ = false;
}

}  // namespace harp::sim
