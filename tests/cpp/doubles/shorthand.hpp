// Bytes, times and looks at descriptors, as tests write them.
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <string_view>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"

namespace lightcc {

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// Blanks do not count.
inline Bytes from_hex(std::string_view text) {
  std::string digits(text);
  std::erase(digits, ' ');
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline TimePoint in(Duration delay) {
  return Clock::system().now() + delay;
}
inline TimePoint soon() {
  return in(std::chrono::seconds(20));
}

/// Whether there is something to read from `fd` within that time.
inline bool readable(int fd, Duration within) {
  pollfd entry{fd, POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(within);
  return ::poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}

}  // namespace lightcc
