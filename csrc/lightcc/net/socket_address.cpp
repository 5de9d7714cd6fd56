#include "lightcc/net/socket_address.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/sha256.hpp"

namespace lightcc {
namespace {

struct HostAndPort {
  std::string host;
  std::string port;
};

Result<HostAndPort> split(const std::string& text) {
  const auto malformed = [&text] {
    return make_error(ErrorCode::kInvalidArgument,
                      "'%s' is not an address: expected host:port, 1.2.3.4:port or [v6]:port",
                      text.c_str());
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return malformed();
  }
  HostAndPort parts{text.substr(0, colon), text.substr(colon + 1)};
  if (parts.host.front() == '[') {
    if (parts.host.size() < 3 || parts.host.back() != ']') {
      return malformed();
    }
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return malformed();  // An IPv6 address without brackets: which colon is the port's?
  }
  std::uint16_t port = 0;
  const char* const end = parts.port.data() + parts.port.size();
  const auto parsed = std::from_chars(parts.port.data(), end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return malformed();
  }
  return parts;
}

template <typename T>
T load(const sockaddr_storage& storage) {
  T address{};
  std::memcpy(&address, &storage, sizeof(T));
  return address;
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace

Result<SocketAddress> SocketAddress::resolve(const std::string& host_and_port) {
  LIGHTCC_ASSIGN_OR_RETURN(const HostAndPort parts, split(host_and_port));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &raw);
  if (error != 0) {
    return make_error(
        ErrorCode::kSystem, "cannot resolve '%s': %s", parts.host.c_str(), ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  // IPv4 first: every end resolves the name on its own, and "localhost" must be one place for all.
  const addrinfo* best = list.get();
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) {
      best = entry;
      break;
    }
  }
  return from_sockaddr(best->ai_addr, best->ai_addrlen);
}

SocketAddress SocketAddress::abstract_unix(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading zero byte makes it abstract. A longer name than fits would be cut, and two could
  // meet.
  const std::string stored =
      name.size() < sizeof(address.sun_path) ? name : hex(sha256(as_bytes(name)));
  std::memcpy(address.sun_path + 1, stored.data(), stored.size());
  SocketAddress result;
  result.length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + stored.size());
  std::memcpy(&result.storage_, &address, result.length_);
  return result;
}

SocketAddress SocketAddress::from_sockaddr(const sockaddr* address, socklen_t length) {
  SocketAddress result;
  if (address != nullptr && length <= sizeof(result.storage_)) {
    std::memcpy(&result.storage_, address, length);
    result.length_ = length;
  }
  return result;
}

std::uint16_t SocketAddress::port() const {
  switch (family()) {
    case AF_INET:
      return ntohs(load<sockaddr_in>(storage_).sin_port);
    case AF_INET6:
      return ntohs(load<sockaddr_in6>(storage_).sin6_port);
    default:
      return 0;
  }
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress result = *this;
  if (family() == AF_INET) {
    auto address = load<sockaddr_in>(storage_);
    address.sin_port = htons(port);
    std::memcpy(&result.storage_, &address, sizeof(address));
  } else if (family() == AF_INET6) {
    auto address = load<sockaddr_in6>(storage_);
    address.sin6_port = htons(port);
    std::memcpy(&result.storage_, &address, sizeof(address));
  }
  return result;
}

bool SocketAddress::is_loopback() const {
  constexpr std::uint32_t kLoopbackNet = 127;
  switch (family()) {
    case AF_INET:
      return ntohl(load<sockaddr_in>(storage_).sin_addr.s_addr) >> 24 == kLoopbackNet;
    case AF_INET6: {
      const auto address = load<sockaddr_in6>(storage_).sin6_addr;
      return IN6_IS_ADDR_LOOPBACK(&address) ||
             (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == kLoopbackNet);
    }
    default:
      return false;
  }
}

std::string SocketAddress::to_string() const {
  if (family() == AF_UNIX) {
    const auto address = load<sockaddr_un>(storage_);
    constexpr std::size_t kNameOffset = offsetof(sockaddr_un, sun_path) + 1;
    if (length_ <= kNameOffset) {
      return "@";  // The unnamed end of a connection.
    }
    return "@" + std::string(address.sun_path + 1, length_ - kNameOffset);
  }
  std::array<char, NI_MAXHOST> host{};
  if (length_ == 0 || ::getnameinfo(data(),
                                    length_,
                                    host.data(),
                                    static_cast<socklen_t>(host.size()),
                                    nullptr,
                                    0,
                                    NI_NUMERICHOST) != 0) {
    return "(no address)";
  }
  const std::string name = host.data();
  const std::string suffix = ":" + std::to_string(port());
  return family() == AF_INET6 ? "[" + name + "]" + suffix : name + suffix;
}

}  // namespace lightcc
