// The connect handle: what a listener gives away, and a client needs in order to connect.
//
// NCCL carries it from one to the other in 64 bytes (128 from version 2.12 on), so it fits 64 in
// every version. It holds the secret: whoever has the handle may connect, and nobody else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/auth.hpp"

namespace harp {

inline constexpr std::size_t kHandleBytes = 60;
static_assert(kHandleBytes <= 64, "NCCL 2.8 gives a handle 64 bytes");

struct ConnectHandle {
  std::uint16_t family = 0;             ///< 4 or 6.
  std::uint16_t port = 0;               ///< UDP, host order.
  std::array<std::byte, 16> address{};  ///< Network order; IPv4 in the first four bytes.
  std::uint64_t listen_id = 0;
  Secret secret{};
  std::uint16_t paths = 0;
  std::uint16_t mtu_bytes = 0;
  std::uint32_t features = 0;
  bool operator==(const ConnectHandle&) const = default;
};

/// Reads a handle; nothing where it is not one, is of another version, or was damaged.
std::optional<ConnectHandle> parse_handle(std::span<const std::byte> bytes);

std::array<std::byte, kHandleBytes> encode_handle(const ConnectHandle& handle);

}  // namespace harp
