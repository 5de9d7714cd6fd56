// Kernel TCP, one connection each way, driven without blocking as NCCL drives its sockets.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "datapath/unique_fd.hpp"
#include "link.hpp"

namespace harp_perf {
namespace {

using harp::UniqueFd;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::system_category(), what);
}

/// Messages in order, each moved on as far as the socket allows.
class TcpLink final : public Link {
 public:
  TcpLink(UniqueFd fd, bool is_sending) : fd_(std::move(fd)), is_sending_(is_sending) {
    const int one = 1;
    (void)::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }

  bool post(std::span<std::byte> message, std::size_t slot) override {
    queue_.push_back({message, slot});
    done_ &= ~(std::uint64_t{1} << slot);
    move();
    return true;
  }
  bool is_done(std::size_t slot) override {
    if (((done_ >> slot) & 1) == 0) {
      move();
    }
    return ((done_ >> slot) & 1) != 0;
  }

 private:
  struct Message {
    std::span<std::byte> rest;
    std::size_t slot;
  };

  void move() {
    while (!queue_.empty()) {
      auto& [rest, slot] = queue_.front();
      if (!rest.empty()) {
        const ssize_t count =
            is_sending_ ? ::send(fd_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                        : ::recv(fd_.get(), rest.data(), rest.size(), MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
          return;
        }
        if (count <= 0) {
          fail("TCP connection");
        }
        rest = rest.subspan(static_cast<std::size_t>(count));
      }
      if (rest.empty()) {
        done_ |= std::uint64_t{1} << slot;
        queue_.pop_front();
      }
    }
  }

  UniqueFd fd_;
  bool is_sending_;
  std::deque<Message> queue_;
  std::uint64_t done_ = 0;
};

sockaddr_in address_of(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("'" + host + "' is not an IPv4 address");
  }
  return address;
}

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    fail("socket");
  }
  return fd;
}

UniqueFd accept_one(const UniqueFd& listener) {
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.is_open()) {
    fail("accept");
  }
  return fd;
}

UniqueFd connect_to(const sockaddr_in& peer) {
  UniqueFd fd = new_socket();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) != 0) {
    fail("connect");
  }
  return fd;
}

}  // namespace

Ends make_tcp_links(bool is_first,
                    const std::string& here,
                    const std::string& peer,
                    Control& control) {
  UniqueFd one;
  UniqueFd other;
  if (is_first) {
    const UniqueFd listener = new_socket();
    sockaddr_in address = address_of(here, 0);
    socklen_t bytes = sizeof(address);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
        ::listen(listener.get(), 2) != 0 ||
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
      fail("listen");
    }
    control.say(std::to_string(ntohs(address.sin_port)));
    one = accept_one(listener);
    other = accept_one(listener);
  } else {
    const sockaddr_in address = address_of(peer, std::stoi(control.hear()));
    one = connect_to(address);
    other = connect_to(address);
  }
  if (!is_first) {
    std::swap(one, other);
  }
  return {.out = std::make_unique<TcpLink>(std::move(one), true),
          .in = std::make_unique<TcpLink>(std::move(other), false)};
}

}  // namespace harp_perf
