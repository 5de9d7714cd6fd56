#include "sockets.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>

#include "datapath/unique_fd.hpp"

namespace harp_perf {
namespace {

using harp::UniqueFd;

constexpr int kBacklog = 2;

const sockaddr* raw(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

void set_option(int fd, int level, int option) {
  const int one = 1;
  (void)::setsockopt(fd, level, option, &one, sizeof(one));
}

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    fail("socket");
  }
  return fd;
}

}  // namespace

void fail(const std::string& what) {
  throw std::system_error(errno, std::system_category(), what);
}

sockaddr_in address_of(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("'" + host + "' is not an IPv4 address such as 192.0.2.1");
  }
  return address;
}

UniqueFd listen_at(const sockaddr_in& address) {
  UniqueFd fd = new_socket();
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR);
  if (::bind(fd.get(), raw(address), sizeof(address)) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    fail("cannot listen");
  }
  return fd;
}

std::uint16_t local_port(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    fail("getsockname");
  }
  return ntohs(address.sin_port);
}

UniqueFd accept_one(const UniqueFd& listener) {
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.is_open()) {
    fail("accept");
  }
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  return fd;
}

UniqueFd connect_to(const sockaddr_in& peer) {
  UniqueFd fd = new_socket();
  if (::connect(fd.get(), raw(peer), sizeof(peer)) != 0) {
    fail("cannot connect");
  }
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  return fd;
}

}  // namespace harp_perf
