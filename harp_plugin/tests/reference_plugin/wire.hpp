// What the two ends of reftcp tell each other: the handle, the greeting of a socket, message
// headers.
//
// Both ends are the same program on the same kind of machine, so structs travel as they are. What
// is read is checked all the same: strangers connect to open ports.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "plugin/core.hpp"
#include "socket.hpp"

namespace reftcp {

using Secret = std::array<std::byte, 16>;

inline constexpr std::uint32_t kMagic = 0x50435452;  // "RTCP"
inline constexpr int kMostSockets = 16;

/// In NCCL's handle: where to connect to, and what proves that one was told so.
struct Invitation {
  std::uint32_t magic = kMagic;
  std::uint16_t family = 0;
  std::uint16_t port = 0;
  std::uint32_t scope = 0;
  std::uint16_t sockets = 1;
  std::uint16_t reserved = 0;
  std::array<std::byte, 16> address{};
  std::uint64_t listener = 0;
  Secret secret{};

  harp::plugin::Handle encode() const;
  /// False: these bytes never came from encode().
  bool decode(const harp::plugin::Handle& handle);
  Address to_address() const;
  void set_address(const Address& where);
};
static_assert(sizeof(Invitation) == 56 && sizeof(Invitation) <= sizeof(harp::plugin::Handle));

/// The first bytes of each socket.
struct Greeting {
  std::uint32_t magic = kMagic;
  std::uint16_t index = 0;
  std::uint16_t sockets = 0;
  std::uint64_t comm = 0;
  Secret secret{};
};
static_assert(sizeof(Greeting) == 32);

/// Before each message, on socket 0.
struct Header {
  std::uint64_t bytes = 0;
  std::int32_t tag = 0;
  std::uint32_t magic = kMagic;
};
static_assert(sizeof(Header) == 16);

/// Which bytes of a message travel on socket `index` of `sockets`.
struct Share {
  std::size_t begin;
  std::size_t end;
};
constexpr Share share_of(std::size_t bytes, int index, int sockets) {
  constexpr std::size_t kStriped = std::size_t{64} << 10;
  constexpr std::size_t kLine = 64;
  if (sockets == 1 || bytes < kStriped) {
    return {0, index == 0 ? bytes : 0};
  }
  const auto parts = static_cast<std::size_t>(sockets);
  const std::size_t part = ((bytes + parts - 1) / parts + kLine - 1) / kLine * kLine;
  const std::size_t begin = std::min(bytes, part * static_cast<std::size_t>(index));
  return {begin, std::min(bytes, begin + part)};
}

template <typename T>
std::span<std::byte> bytes_of(T& object) {
  return std::as_writable_bytes(std::span<T, 1>(&object, 1));
}

}  // namespace reftcp
