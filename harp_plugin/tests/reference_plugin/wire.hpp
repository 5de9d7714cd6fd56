// What the two ends of reftcp tell each other: the handle, the greeting of a socket, message
// headers.
//
// Both ends are the same program on the same kind of machine, so structs travel as they are. What
// is read is checked all the same: strangers connect to open ports.
#pragma once

#include <netinet/in.h>

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

/// In NCCL's handle: where to connect to, and what proves that one was told so.
struct Invitation {
  std::uint32_t magic = kMagic;
  std::uint32_t address_bytes = 0;
  std::array<std::byte, sizeof(sockaddr_in6)> address{};
  Secret secret{};

  harp::plugin::Handle encode() const {
    harp::plugin::Handle handle{};
    std::memcpy(handle.data(), this, sizeof(*this));
    return handle;
  }
  /// False: these bytes never came from encode().
  bool decode(const harp::plugin::Handle& handle) {
    std::memcpy(static_cast<void*>(this), handle.data(), sizeof(*this));
    return magic == kMagic && address_bytes <= sizeof(address) &&
           address_bytes == length_of(to_address().storage.ss_family);
  }
  Address to_address() const {
    Address where;
    std::memcpy(&where.storage, address.data(), sizeof(address));
    where.bytes = address_bytes;
    return where;
  }
  void set_address(const Address& where) {
    address_bytes = where.bytes;
    std::memcpy(address.data(), &where.storage, where.bytes);
  }
};
static_assert(sizeof(Invitation) <= sizeof(harp::plugin::Handle));

/// The first bytes of a connection.
struct Greeting {
  std::uint64_t magic = kMagic;
  Secret secret{};
};
static_assert(sizeof(Greeting) == 24);

/// Before each message.
struct Header {
  std::uint64_t bytes = 0;
  std::int32_t tag = 0;
  std::uint32_t magic = kMagic;
};
static_assert(sizeof(Header) == 16);

template <typename T>
std::span<std::byte> bytes_of(T& object) {
  return std::as_writable_bytes(std::span<T, 1>(&object, 1));
}

}  // namespace reftcp
