// Round-trip time of one path: smoothed value and deviation (RFC 6298), and the least of the last
// ten seconds, which stands for the path without queues.
//
// Samples come from echoed transmit times with the receiver's delay taken out, so retransmitted
// packets give valid samples too. The minimum is that of two half windows: it forgets a route that
// is gone after at most ten seconds, and never forgets one younger than five.
#pragma once

#include "base/time.hpp"

namespace harp {

class RttEstimator {
 public:
  void add_sample(Duration rtt, Time now);

  bool has_sample() const { return smoothed_ != Duration::zero(); }
  Duration smoothed() const { return smoothed_; }
  Duration deviation() const { return deviation_; }
  Duration minimum() const { return minimum_ < previous_minimum_ ? minimum_ : previous_minimum_; }

 private:
  Duration smoothed_{};
  Duration deviation_{};
  Duration minimum_ = Duration::max();
  Duration previous_minimum_ = Duration::max();
  Time half_window_ends_{};
};

}  // namespace harp
