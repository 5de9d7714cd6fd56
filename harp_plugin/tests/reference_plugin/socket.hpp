// Sockets and addresses of the reference plugin. Everything is non-blocking and close-on-exec.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "datapath/unique_fd.hpp"

namespace reftcp {

using harp::UniqueFd;

/// A peer whose kernel does not answer for so long is gone.
inline constexpr int kPeerTimeoutS = 30;

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* raw() const;
  std::uint16_t port() const;
  Address with_port(std::uint16_t port) const;
};

/// Bytes of an address; 0 where the family is another than IPv4 and IPv6.
socklen_t length_of(int family);

/// One network interface, as a device.
struct Interface {
  std::string name;
  std::string pci_path;  ///< Empty: not on a PCI bus.
  int speed_mbps = 0;
  Address address;
};

/// What is up and has an address: the interfaces named in `wanted` (commas), or all but loopback,
/// or loopback where there is nothing else.
std::vector<Interface> find_interfaces(const std::string& wanted);

/// A socket that listens at `address`, any port. Not open: errno says why.
UniqueFd listen_at(const Address& address);

/// A socket on its way from `source` to `peer`. Not open: errno says why.
UniqueFd start_to_connect(const Address& source, const Address& peer);

/// What tuning a connected socket needs at both ends.
void tune(int fd);

/// Whether a call on a non-blocking socket failed only because it is not ready.
bool would_block(int error);

}  // namespace reftcp
