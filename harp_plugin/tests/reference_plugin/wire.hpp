// What the two ends of reftcp tell each other: the handle, and a header before each message.
//
// Both ends are the same program on the same kind of machine, so structs travel as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "datapath/address.hpp"
#include "plugin/core.hpp"

namespace reftcp {

inline constexpr std::uint32_t kMagic = 0x50435452;  // "RTCP"

/// In NCCL's handle: where to connect to.
struct Invitation {
  std::uint32_t magic = kMagic;
  harp::Address address;

  harp::plugin::Handle encode() const {
    harp::plugin::Handle handle{};
    std::memcpy(handle.data(), this, sizeof(*this));
    return handle;
  }
  /// False: these bytes never came from encode().
  bool decode(const harp::plugin::Handle& handle) {
    std::memcpy(static_cast<void*>(this), handle.data(), sizeof(*this));
    return magic == kMagic && (address.family == 4 || address.family == 6);
  }
};
static_assert(sizeof(Invitation) <= sizeof(harp::plugin::Handle));

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
