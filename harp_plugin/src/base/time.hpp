// Time as the protocol knows it: a parameter, in nanoseconds since an epoch that nobody asks about.
//
// A clock type of its own keeps times of the engine apart from those of the operating system: they
// do not convert. There is no now(); whoever drives a session says what time it is.
#pragma once

#include <chrono>

namespace harp {

using Duration = std::chrono::nanoseconds;

struct EngineClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<EngineClock>;
  // NOLINTNEXTLINE(readability-identifier-naming): the name is what <chrono> asks for.
  static constexpr bool is_steady = true;
};

using Time = EngineClock::time_point;

/// "Never", as a deadline.
inline constexpr Time kNever = Time::max();

constexpr double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace harp
