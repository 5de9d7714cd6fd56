// Where an endpoint is, as its peers address it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace harp {

struct Address {
  std::array<std::byte, 16> ip{};  ///< Network order; IPv4 in the first four bytes.
  std::uint16_t family = 4;        ///< 4 or 6.
  std::uint16_t port = 0;          ///< UDP, host order.
  bool operator==(const Address&) const = default;
};

/// The bytes of `address` that its family has.
inline std::span<const std::byte> ip_of(const Address& address) {
  return std::span(address.ip).first(address.family == 4 ? 4 : 16);
}

/// `ip`: 4 or 16 bytes, in network order.
inline Address address_of(std::span<const std::byte> ip, std::uint16_t port) {
  Address address;
  if (ip.size() == 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, ip.data(), sizeof(word));
    // Whole, for it is soon copied whole: docs/inside/style.md, hot paths.
    address.ip = std::bit_cast<decltype(address.ip)>(std::array<std::uint64_t, 2>{word, 0});
  } else {
    std::memcpy(address.ip.data(), ip.data(), address.ip.size());
    address.family = 6;
  }
  address.port = port;
  return address;
}

/// "192.0.2.1:4791" or "[2001:db8::1]:4791".
std::string to_string(const Address& address);

}  // namespace harp
