// IPv4, IPv6 and abstract Unix addresses, and the machine's interfaces.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

/// A value: something to bind or connect to.
class SocketAddress {
 public:
  SocketAddress() = default;
  /// Resolves "host:port", "1.2.3.4:5", "[::1]:5". Blocks: in the resolver, for names.
  LIGHTCC_EXPORT static Result<SocketAddress> resolve(const std::string& host_and_port);
  /// An abstract Unix socket (no file; one name space per network namespace).
  static SocketAddress abstract_unix(const std::string& name);
  static SocketAddress from_sockaddr(const sockaddr* address, socklen_t length);

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }
  std::uint16_t port() const;
  SocketAddress with_port(std::uint16_t port) const;
  bool is_loopback() const;
  /// "1.2.3.4:5", "[::1]:5", "@name".
  LIGHTCC_EXPORT std::string to_string() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

struct Interface {
  std::string name;
  SocketAddress address;  ///< Port 0. Link-local IPv6 addresses are left out.
  bool is_loopback = false;
};
/// All interfaces that are up, one entry per address.
Result<std::vector<Interface>> list_interfaces();

/// The address by which other hosts reach this rank (port 0).
///
/// `iface`: comma-separated interface names, local rank i uses the i-th (modulo their number);
/// empty: the source address of the route to `rendezvous` (no packet is sent). Loopback only when
/// it was named or when `rendezvous` itself is on loopback. kInvalidArgument lists the candidates.
Result<SocketAddress> choose_address(const std::string& iface,
                                     int local_rank,
                                     const std::string& rendezvous);

}  // namespace lightcc
