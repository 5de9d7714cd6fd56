// A token bucket: how many bytes may be sent now at a given rate (the test option LIGHT_TCP_RATE).
//
// Time is handed in, never read. The level is kept in billionths of a byte, so that no rate loses
// tokens to rounding, however often it is asked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "lightcc/base/clock.hpp"

namespace lightcc {

class TokenBucket {
 public:
  /// @param rate_bytes_per_s 0: unlimited. Otherwise the bucket starts full.
  TokenBucket(std::int64_t rate_bytes_per_s, TimePoint now)
      : rate_(rate_bytes_per_s), level_(burst_bytes() * kNano), last_(now) {}

  bool unlimited() const { return rate_ == 0; }

  /// What may be sent at once after a pause: 10 ms worth, within bounds that keep the arithmetic
  /// exact and a stripe's share sensible.
  std::int64_t burst_bytes() const {
    return std::clamp(rate_ / 100, std::int64_t{16} << 10, std::int64_t{1} << 30);
  }

  /// Bytes that may be sent at `now`.
  std::int64_t available(TimePoint now) {
    if (unlimited()) {
      return std::numeric_limits<std::int64_t>::max();
    }
    const std::int64_t elapsed_ns = (now - last_).count();
    if (elapsed_ns > 0) {
      last_ = now;
      const std::int64_t missing = burst_bytes() * kNano - level_;
      level_ += elapsed_ns > missing / rate_ ? missing : elapsed_ns * rate_;
    }
    return level_ / kNano;
  }

  /// `bytes` is at most what available() last said.
  void spend(std::size_t bytes) {
    if (!unlimited()) {
      level_ -= static_cast<std::int64_t>(bytes) * kNano;
    }
  }

  /// How long after the last available() there will be `bytes` (at most the burst) tokens.
  Duration time_until(std::int64_t bytes) const {
    if (unlimited()) {
      return Duration(0);
    }
    const std::int64_t missing = std::min(bytes, burst_bytes()) * kNano - level_;
    return Duration(missing <= 0 ? 0 : (missing + rate_ - 1) / rate_);
  }

 private:
  static constexpr std::int64_t kNano = 1'000'000'000;

  std::int64_t rate_;
  std::int64_t level_;
  TimePoint last_;
};

}  // namespace lightcc
