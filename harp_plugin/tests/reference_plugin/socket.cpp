#include "socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace reftcp {
namespace {

constexpr int kBacklog = 1024;

/// An address as the kernel takes it.
struct Raw {
  explicit Raw(const harp::Address& address) {
    auto* const in = reinterpret_cast<sockaddr_in*>(&storage);
    auto* const in6 = reinterpret_cast<sockaddr_in6*>(&storage);
    const auto ip = harp::ip_of(address);
    if (address.family == 4) {
      in->sin_family = AF_INET;
      std::memcpy(&in->sin_addr, ip.data(), ip.size());
      bytes = sizeof(*in);
    } else {
      in6->sin6_family = AF_INET6;
      std::memcpy(&in6->sin6_addr, ip.data(), ip.size());
      bytes = sizeof(*in6);
    }
    in->sin_port = htons(address.port);  // sin6_port shares its place.
  }
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&storage); }

  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

UniqueFd new_socket(const Raw& address) {
  return UniqueFd(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set_option(int fd, int level, int option, int value) {
  // Tuning only: a kernel that knows no such option works as well.
  (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

UniqueFd listen_at(harp::Address* address) {
  address->port = 0;
  Raw raw(*address);
  UniqueFd fd = new_socket(raw);
  if (!fd.is_open() || ::bind(fd.get(), raw.pointer(), raw.bytes) != 0 ||
      ::listen(fd.get(), kBacklog) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&raw.storage), &raw.bytes) != 0) {
    return {};
  }
  address->port = ntohs(reinterpret_cast<const sockaddr_in*>(&raw.storage)->sin_port);
  return fd;
}

UniqueFd start_to_connect(harp::Address source, const harp::Address& peer) {
  const Raw to(peer);
  UniqueFd fd = new_socket(to);
  if (!fd.is_open()) {
    return {};
  }
  if (source.family == peer.family) {
    source.port = 0;
    const Raw from(source);
    set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(fd.get(), from.pointer(), from.bytes) != 0) {
      return {};
    }
  }
  tune(fd.get());
  if (::connect(fd.get(), to.pointer(), to.bytes) != 0 && errno != EINPROGRESS) {
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
