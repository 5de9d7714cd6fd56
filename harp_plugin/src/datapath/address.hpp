// Where an endpoint is, as its peers address it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace harp {

struct Address {
  std::array<std::byte, 16> ip{};  ///< Network order; IPv4 in the first four bytes.
  std::uint16_t family = 4;        ///< 4 or 6.
  std::uint16_t port = 0;          ///< UDP, host order.
  bool operator==(const Address&) const = default;
};

/// "192.0.2.1:4791" or "[2001:db8::1]:4791".
std::string to_string(const Address& address);

}  // namespace harp
