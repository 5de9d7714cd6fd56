// Times of one path, smoothed (RFC 6298): the network's round trip, and the peer's response, which
// is the round trip with what the peer took to answer. The first is what congestion shows in, the
// second what a timeout must bear: a peer whose process waits for its core is no congested network,
// and nothing is lost.
//
// Samples come from echoed transmit times, so retransmitted packets give valid samples too. The
// least round trip of the last ten seconds stands for the path without queues. It is that of two
// half windows: it forgets a route that is gone after at most ten seconds, and never forgets one
// younger than five.
#pragma once

#include "base/time.hpp"

namespace harp {

class SmoothedTime {
 public:
  void add_sample(Duration sample);

  bool has_sample() const { return smoothed_ != Duration::zero(); }
  Duration smoothed() const { return smoothed_; }
  Duration deviation() const { return deviation_; }

 private:
  Duration smoothed_{};
  Duration deviation_{};
};

class RttEstimator {
 public:
  /// `rtt` on the network alone, `response` from sending to the answer's arrival.
  void add_sample(Duration rtt, Duration response, Time now);

  bool has_sample() const { return rtt_.has_sample(); }
  Duration smoothed() const { return rtt_.smoothed(); }
  Duration minimum() const { return minimum_ < previous_minimum_ ? minimum_ : previous_minimum_; }
  const SmoothedTime& response() const { return response_; }

 private:
  SmoothedTime rtt_;
  SmoothedTime response_;
  Duration minimum_ = Duration::max();
  Duration previous_minimum_ = Duration::max();
  Time half_window_ends_{};
};

}  // namespace harp
