// Time, injected: production code takes a Clock, tests hand in one that they move by hand.
#pragma once

#include <chrono>

#include "lightcc/base/export.hpp"

namespace lightcc {

/// Steady time. The epoch is arbitrary; only differences mean anything.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

/// Converts seconds, as knobs have them.
inline Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

/// Thread: any.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  /// The machine's steady clock; lives as long as the process.
  LIGHTCC_EXPORT static const Clock& system();
};

}  // namespace lightcc
