// CUBIC (RFC 9438): the window grows as a cube of the time since the last congestion, slowly around
// where that happened, and is multiplied by 0.7 when packets are lost.
//
// With slow start that ends where round trips grow (HyStart, RFC 9406, without its conservative
// phase), fast convergence, and growth as Reno's where that is faster. Nothing is paced.
#pragma once

#include <cstdint>

#include "base/time.hpp"
#include "sim/tcp_flow.hpp"

namespace harp::sim {

class TcpCubic final : public TcpControl {
 public:
  void on_ack(const TcpAck& ack) override;
  void on_congestion(Time now, std::uint32_t in_flight) override;
  void on_recovered() override { in_recovery_ = false; }
  void on_timeout(Time now) override;
  double window_packets() const override { return window_; }

  bool in_slow_start() const { return window_ < threshold_; }

 private:
  void slow_start(const TcpAck& ack);
  void avoid_congestion(const TcpAck& ack);
  void reduce();

  double window_ = 10;
  double threshold_ = 1e9;
  double maximum_ = 0;       ///< W_max: the window when packets were lost.
  double reno_ = 0;          ///< W_est
  double cube_root_s_ = 0;   ///< K: from the epoch's start until the window is W_max again.
  double epoch_window_ = 0;  ///< cwnd_epoch
  Time epoch_start_ = kNever;
  Duration round_rtt_ = Duration::max();  ///< Least in this round.
  Duration previous_rtt_ = Duration::max();
  std::uint32_t round_samples_ = 0;
  std::uint64_t round_ends_ = 0;  ///< It counts packets delivered.
  bool in_recovery_ = false;
};

}  // namespace harp::sim
