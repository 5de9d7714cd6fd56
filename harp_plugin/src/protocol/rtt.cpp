#include "protocol/rtt.hpp"

#include <algorithm>
#include <chrono>

#include "base/time.hpp"

namespace harp {
namespace {

constexpr Duration kHalfWindow = std::chrono::seconds(5);

}  // namespace

void SmoothedTime::add_sample(Duration sample) {
  sample = std::max(sample, Duration(1));
  if (!has_sample()) {
    smoothed_ = sample;
    deviation_ = sample / 2;
    return;
  }
  const Duration error = sample > smoothed_ ? sample - smoothed_ : smoothed_ - sample;
  deviation_ += (error - deviation_) / 4;
  smoothed_ = std::max(smoothed_ + (sample - smoothed_) / 8, Duration(1));
}

void RttEstimator::add_sample(Duration rtt, Duration response, Time now) {
  rtt = std::max(rtt, Duration(1));
  rtt_.add_sample(rtt);
  response_.add_sample(response);
  if (now >= half_window_ends_) {
    previous_minimum_ = minimum_;
    minimum_ = rtt;
    half_window_ends_ = now + kHalfWindow;
  }
  minimum_ = std::min(minimum_, rtt);
}

}  // namespace harp
