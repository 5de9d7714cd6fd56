// The memory of a state: lanes of residual or velocity, twice, so that a step can be undone.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace lightcc::detail {

/// Two zeroed arrays, aligned for any vector: what is committed, and what the pending step makes of
/// it.
class LanePair {
 public:
  LanePair() = default;
  explicit LanePair(std::size_t count_bytes)
      : count_bytes_(count_bytes), current_(count_bytes / kLineBytes + 1), next_(current_.size()) {}

  /// Default-constructed: not even zero lanes.
  bool exists() const { return !current_.empty(); }
  std::byte* current() { return current_.front().bytes.data(); }
  const std::byte* current() const { return current_.front().bytes.data(); }
  std::byte* next() { return next_.front().bytes.data(); }
  std::span<const std::byte> bytes() const {
    return exists() ? std::span(current(), count_bytes_) : std::span<const std::byte>();
  }
  void swap() { std::swap(current_, next_); }

 private:
  static constexpr std::size_t kLineBytes = 64;
  struct alignas(kLineBytes) Line {
    std::array<std::byte, kLineBytes> bytes;
  };

  std::size_t count_bytes_ = 0;
  std::vector<Line> current_;
  std::vector<Line> next_;
};

}  // namespace lightcc::detail
