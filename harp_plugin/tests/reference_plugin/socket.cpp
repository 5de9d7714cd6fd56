#include "socket.hpp"

#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace reftcp {
namespace {

constexpr int kBacklog = 1024;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) {
    names.push_back(name);
  }
  return names;
}

std::string pci_path_of(const std::string& name) {
  const std::string link = "/sys/class/net/" + name + "/device";
  const std::unique_ptr<char, void (*)(void*)> path(::realpath(link.c_str(), nullptr), std::free);
  return path != nullptr ? path.get() : "";
}

int speed_of(const std::string& name) {
  constexpr int kUnknown = 10000;
  int speed = 0;
  std::ifstream file("/sys/class/net/" + name + "/speed");
  return file >> speed && speed > 0 ? speed : kUnknown;
}

void set_option(int fd, int level, int option, int value) {
  // Tuning only: a kernel that knows no such option works as well.
  (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

socklen_t length_of(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

const sockaddr* Address::raw() const {
  return reinterpret_cast<const sockaddr*>(&storage);
}

std::uint16_t Address::port() const {
  // sin_port and sin6_port share their place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

Address Address::with_port(std::uint16_t port) const {
  Address other = *this;
  reinterpret_cast<sockaddr_in*>(&other.storage)->sin_port = htons(port);
  return other;
}

std::vector<Interface> find_interfaces(const std::string& wanted) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  const std::vector<std::string> names = split(wanted);
  std::vector<Interface> found;
  std::vector<Interface> loopback;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family ||
          (entry->ifa_flags & IFF_UP) == 0) {
        continue;
      }
      Interface one;
      one.name = entry->ifa_name;
      const auto same_name = [&](const Interface& other) { return other.name == one.name; };
      if (std::ranges::any_of(found, same_name) || std::ranges::any_of(loopback, same_name)) {
        continue;  // One address is enough, and names of devices are unique.
      }
      one.pci_path = pci_path_of(one.name);
      one.speed_mbps = speed_of(one.name);
      one.address.bytes = length_of(family);
      std::memcpy(&one.address.storage, entry->ifa_addr, one.address.bytes);
      if (!names.empty()) {
        if (std::ranges::find(names, one.name) != names.end()) {
          found.push_back(std::move(one));
        }
      } else if ((entry->ifa_flags & IFF_LOOPBACK) != 0) {
        loopback.push_back(std::move(one));
      } else {
        found.push_back(std::move(one));
      }
    }
  }
  return found.empty() ? loopback : found;
}

UniqueFd listen_at(const Address& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const Address any_port = address.with_port(0);
  if (!fd.is_open() || ::bind(fd.get(), any_port.raw(), any_port.bytes) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return {};
  }
  return fd;
}

UniqueFd start_to_connect(const Address& source, const Address& peer) {
  UniqueFd fd(::socket(peer.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    return {};
  }
  if (source.storage.ss_family == peer.storage.ss_family) {
    const Address any_port = source.with_port(0);
    set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(fd.get(), any_port.raw(), any_port.bytes) != 0) {
      return {};
    }
  }
  tune(fd.get());
  if (::connect(fd.get(), peer.raw(), peer.bytes) != 0 && errno != EINPROGRESS) {
    return {};
  }
  return fd;
}

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer whose kernel is silent this long is gone, whether data is under way or not.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kPeerTimeoutS * 1000);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kPeerTimeoutS / 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kPeerTimeoutS / 6);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace reftcp
