// The network interfaces of this machine, as devices.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/address.hpp"

namespace harp {

struct Interface {
  std::string name;
  std::string pci_path;  ///< As sysfs has it; empty: not on a PCI bus.
  int speed_mbps = 0;
  std::size_t mtu_bytes = 0;
  Address address;  ///< IPv4 where it has one. Port 0.
};

/// Interfaces that are up and have an address, IPv6 link-local ones aside, in the system's order.
///
/// `wanted` as in NCCL_SOCKET_IFNAME: prefixes of names with commas between ("eth,ib"), "=" before
/// them for whole names, "^" or "^=" for all others. Empty: all but docker's and loopback; loopback
/// where there is nothing else.
std::vector<Interface> find_interfaces(const std::string& wanted);

/// Where the device behind a link in sysfs is; empty where there is none.
std::string pci_path_of_device(const std::string& link);

/// Whether `name` is among `wanted`, in the notation above.
bool is_wanted(std::string_view name, std::string_view wanted);

}  // namespace harp
