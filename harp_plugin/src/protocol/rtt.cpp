#include "protocol/rtt.hpp"

#include <algorithm>
#include <chrono>

#include "base/time.hpp"

namespace harp {
namespace {

constexpr Duration kHalfWindow = std::chrono::seconds(5);

}  // namespace

void RttEstimator::add_sample(Duration rtt, Time now) {
  rtt = std::max(rtt, Duration(1));
  if (!has_sample()) {
    smoothed_ = rtt;
    deviation_ = rtt / 2;
  } else {
    const Duration error = rtt > smoothed_ ? rtt - smoothed_ : smoothed_ - rtt;
    deviation_ += (error - deviation_) / 4;
    smoothed_ = std::max(smoothed_ + (rtt - smoothed_) / 8, Duration(1));
  }
  if (now >= half_window_ends_) {
    previous_minimum_ = minimum_;
    minimum_ = rtt;
    half_window_ends_ = now + kHalfWindow;
  }
  minimum_ = std::min(minimum_, rtt);
}

}  // namespace harp
