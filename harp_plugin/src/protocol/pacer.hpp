// When the next packet may leave: a token bucket, written as the time at which it is full enough.
//
// Sending moves the time forward by what the packet costs at the current rate. The time may lag
// behind the present by one burst, so that timers need not be finer than a burst lasts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"

namespace harp {

class Pacer {
 public:
  /// Rate 0 means no limit.
  void set_rate(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  bool may_send(Time now) const { return ready_at_ <= now; }
  Time ready_at() const { return ready_at_; }
  void on_sent(std::size_t bytes, Time now) {
    if (bytes_per_s_ <= 0) {
      ready_at_ = now;
      return;
    }
    const auto cost = [this](double count) {
      const double cost_s = std::min(count / bytes_per_s_, seconds(kMostWait));
      return Duration(static_cast<std::int64_t>(cost_s * 1e9));
    };
    ready_at_ = std::max(ready_at_, now - cost(kBurstBytes)) + cost(static_cast<double>(bytes));
  }

 private:
  static constexpr double kBurstBytes = 8 * 1500;
  /// What is slower still is up to the window.
  static constexpr Duration kMostWait = std::chrono::milliseconds(20);

  double bytes_per_s_ = 0;
  Time ready_at_{};
};

}  // namespace harp
