#include "endpoint/interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/address.hpp"

namespace harp {
namespace {

/// A number that sysfs has of an interface, or `otherwise`.
int sysfs_number(const std::string& name, const char* what, int otherwise) {
  int number = 0;
  std::ifstream file("/sys/class/net/" + name + "/" + what);
  return file >> number && number > 0 ? number : otherwise;
}

std::optional<Address> read_address(const sockaddr& from) {
  Address address;
  if (from.sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &from, sizeof(in));
    std::memcpy(address.ip.data(), &in.sin_addr, sizeof(in.sin_addr));
    return address;
  }
  sockaddr_in6 in{};
  std::memcpy(&in, &from, sizeof(in));
  if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) {
    return std::nullopt;  // Means nothing without the interface, which a handle cannot name.
  }
  address.family = 6;
  std::memcpy(address.ip.data(), &in.sin6_addr, sizeof(in.sin6_addr));
  return address;
}

}  // namespace

std::string pci_path_of_device(const std::string& link) {
  const std::unique_ptr<char, void (*)(void*)> path(::realpath(link.c_str(), nullptr), std::free);
  return path != nullptr ? path.get() : "";
}

bool is_wanted(std::string_view name, std::string_view wanted) {
  const bool is_excluding = wanted.starts_with('^');
  wanted.remove_prefix(is_excluding ? 1 : 0);
  const bool is_exact = wanted.starts_with('=');
  wanted.remove_prefix(is_exact ? 1 : 0);
  bool is_listed = false;
  while (!wanted.empty()) {
    const std::string_view one = wanted.substr(0, wanted.find(','));
    is_listed = is_listed || (is_exact ? name == one : !one.empty() && name.starts_with(one));
    wanted.remove_prefix(std::min(one.size() + 1, wanted.size()));
  }
  return is_listed != is_excluding;
}

std::vector<Interface> find_interfaces(const std::string& wanted) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<Interface> found;
  std::vector<Interface> loopback;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family ||
          (entry->ifa_flags & IFF_UP) == 0) {
        continue;
      }
      const std::string name = entry->ifa_name;
      const bool is_loopback = wanted.empty() && (entry->ifa_flags & IFF_LOOPBACK) != 0;
      std::vector<Interface>& kind = is_loopback ? loopback : found;
      const auto address = read_address(*entry->ifa_addr);
      if (!address || !is_wanted(name, wanted.empty() ? "^docker" : wanted) ||
          std::ranges::find(kind, name, &Interface::name) != kind.end()) {
        continue;  // One address is enough, and names of devices are unique.
      }
      constexpr int kUnknownSpeed = 10000;
      constexpr int kUsualMtu = 1500;
      kind.push_back({.name = name,
                      .pci_path = pci_path_of_device("/sys/class/net/" + name + "/device"),
                      .speed_mbps = sysfs_number(name, "speed", kUnknownSpeed),
                      .mtu_bytes = static_cast<std::size_t>(sysfs_number(name, "mtu", kUsualMtu)),
                      .address = *address});
    }
  }
  return found.empty() ? loopback : found;
}

}  // namespace harp
