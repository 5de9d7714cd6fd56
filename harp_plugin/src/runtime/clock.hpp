// The one place that asks what time it is.
#pragma once

#include <chrono>

#include "base/time.hpp"

namespace harp {

inline Time clock_now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace harp
