// Comparison of 32-bit numbers that wrap, as in RFC 1982: `a` lies before `b` where fewer than 2^31
// steps lead from `a` to `b`. Every number on the wire that grows for ever is compared so, and
// every window is far smaller than 2^31.
#pragma once

#include <cstdint>

namespace harp {

/// Steps from `from` to `to`; negative where `to` lies before `from`.
constexpr std::int32_t serial_distance(std::uint32_t from, std::uint32_t to) {
  return static_cast<std::int32_t>(to - from);
}

constexpr bool serial_less(std::uint32_t a, std::uint32_t b) {
  return serial_distance(a, b) > 0;
}

constexpr std::uint32_t serial_max(std::uint32_t a, std::uint32_t b) {
  return serial_less(a, b) ? b : a;
}

}  // namespace harp
