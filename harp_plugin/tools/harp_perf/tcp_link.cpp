// Kernel TCP, one connection each way, driven without blocking as NCCL drives its sockets.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "datapath/unique_fd.hpp"
#include "link.hpp"
#include "sockets.hpp"

namespace harp_perf {
namespace {

using harp::UniqueFd;

/// Messages in order, each moved on as far as the socket allows.
class TcpLink final : public Link {
 public:
  TcpLink(UniqueFd fd, bool is_sending) : fd_(std::move(fd)), is_sending_(is_sending) {}

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

}  // namespace

Ends make_tcp_links(bool is_first,
                    const std::string& here,
                    const std::string& peer,
                    Control& control) {
  UniqueFd one;
  UniqueFd other;
  if (is_first) {
    const UniqueFd listener = listen_at(address_of(here, 0));
    control.say(std::to_string(local_port(listener)));
    one = accept_one(listener);
    other = accept_one(listener);
  } else {
    const sockaddr_in address =
        address_of(peer, static_cast<std::uint16_t>(std::stoi(control.hear())));
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
