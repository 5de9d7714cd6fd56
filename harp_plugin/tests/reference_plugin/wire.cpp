#include "wire.hpp"

#include <netinet/in.h>

namespace reftcp {

harp::plugin::Handle Invitation::encode() const {
  harp::plugin::Handle handle{};
  std::memcpy(handle.data(), this, sizeof(*this));
  return handle;
}

bool Invitation::decode(const harp::plugin::Handle& handle) {
  std::memcpy(static_cast<void*>(this), handle.data(), sizeof(*this));
  return magic == kMagic && (family == AF_INET || family == AF_INET6) && sockets >= 1 &&
         sockets <= kMostSockets && port != 0;
}

Address Invitation::to_address() const {
  Address where;
  if (family == AF_INET) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&where.storage);
    v4->sin_family = AF_INET;
    std::memcpy(&v4->sin_addr, address.data(), sizeof(v4->sin_addr));
    where.bytes = sizeof(*v4);
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&where.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_scope_id = scope;
    std::memcpy(&v6->sin6_addr, address.data(), sizeof(v6->sin6_addr));
    where.bytes = sizeof(*v6);
  }
  return where.with_port(port);
}

void Invitation::set_address(const Address& where) {
  family = where.storage.ss_family;
  port = where.port();
  if (family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&where.storage);
    std::memcpy(address.data(), &v4->sin_addr, sizeof(v4->sin_addr));
  } else {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&where.storage);
    scope = v6->sin6_scope_id;
    std::memcpy(address.data(), &v6->sin6_addr, sizeof(v6->sin6_addr));
  }
}

}  // namespace reftcp
