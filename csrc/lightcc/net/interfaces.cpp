// The machine's interfaces, and which of their addresses other hosts should use.
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/socket_address.hpp"

namespace lightcc {
namespace {

std::string without_port(const SocketAddress& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}

std::string candidates(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& entry : interfaces) {
    text += text.empty() ? "" : ", ";
    text += entry.name + " (" + without_port(entry.address) + ")";
  }
  return text.empty() ? "none is up" : text;
}

std::vector<std::string> split_names(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view name = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (!name.empty() && name.front() == ' ') {
      name.remove_prefix(1);
    }
    while (!name.empty() && name.back() == ' ') {
      name.remove_suffix(1);
    }
    if (!name.empty()) {
      names.emplace_back(name);
    }
  }
  return names;
}

// The address of the named interface; where it has several, one that fits `rendezvous`, else IPv4.
Result<SocketAddress> address_of(const std::string& name,
                                 const std::vector<Interface>& interfaces,
                                 const std::string& rendezvous) {
  std::vector<SocketAddress> found;
  for (const Interface& entry : interfaces) {
    if (entry.name == name) {
      found.push_back(entry.address);
    }
  }
  if (found.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no interface '%s' with an address is up; candidates: %s",
                      name.c_str(),
                      candidates(interfaces).c_str());
  }
  const auto first_of = [&found](int family) {
    return std::ranges::find_if(
        found, [family](const SocketAddress& address) { return address.family() == family; });
  };
  if (first_of(AF_INET) != found.end() && first_of(AF_INET6) != found.end()) {
    const auto wanted = SocketAddress::resolve(rendezvous);
    const int family = wanted.ok() ? wanted.value().family() : AF_INET;
    return *first_of(family == AF_INET6 ? AF_INET6 : AF_INET);
  }
  return found.front();
}

// Asks the kernel's routing table: connecting a datagram socket sends nothing.
Result<SocketAddress> source_towards(const SocketAddress& target) {
  const UniqueFd fd(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make a socket");
  }
  if (::connect(fd.get(), target.data(), target.length()) != 0) {
    return make_system_error(
        ErrorCode::kSystem, errno, "no route to %s", without_port(target).c_str());
  }
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "getsockname failed");
  }
  return SocketAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length).with_port(0);
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot list the network interfaces");
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
      continue;
    }
    if (family == AF_INET6) {
      sockaddr_in6 address{};
      std::memcpy(&address, entry->ifa_addr, sizeof(address));
      if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) {
        continue;
      }
    }
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    interfaces.push_back({entry->ifa_name,
                          SocketAddress::from_sockaddr(entry->ifa_addr, length),
                          (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return interfaces;
}

Result<SocketAddress> choose_address(const std::string& iface,
                                     int local_rank,
                                     const std::string& rendezvous) {
  LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, list_interfaces());
  if (local_rank < 0) {
    return make_error(ErrorCode::kInvalidArgument, "local rank %d is negative", local_rank);
  }
  if (const auto names = split_names(iface); !names.empty()) {
    const std::string& name = names[static_cast<std::size_t>(local_rank) % names.size()];
    return address_of(name, interfaces, rendezvous);
  }
  const auto explain = [&interfaces](const Status& why) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cannot tell by which address other hosts reach this one (%s); name an "
                      "interface with LIGHT_IFACE; candidates: %s",
                      why.message().c_str(),
                      candidates(interfaces).c_str());
  };
  const auto target = SocketAddress::resolve(rendezvous);
  if (!target.ok()) {
    return explain(target.status());
  }
  auto source = source_towards(target.value());
  if (!source.ok()) {
    return explain(source.status());
  }
  if (source->is_loopback() && !target.value().is_loopback()) {
    return explain(make_error(
        ErrorCode::kInvalidArgument, "the route to %s goes over loopback", rendezvous.c_str()));
  }
  return source;
}

}  // namespace lightcc
