// Kernel TCP, driven without blocking as NCCL drives its sockets. One connection carries both
// directions, where an answer takes the acknowledgement with it; or there is one each way, as NCCL
// has them, and no answer does.
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
  TcpLink(std::shared_ptr<const UniqueFd> fd, bool is_sending)
      : fd_(std::move(fd)), is_sending_(is_sending) {}

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
            is_sending_ ? ::send(fd_->get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                        : ::recv(fd_->get(), rest.data(), rest.size(), MSG_DONTWAIT);
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

  std::shared_ptr<const UniqueFd> fd_;
  bool is_sending_;
  std::deque<Message> queue_;
  std::uint64_t done_ = 0;
};

}  // namespace

Ends make_tcp_links(bool is_first,
                    bool is_each_way,
                    const std::string& here,
                    const std::string& peer,
                    Control& control) {
  UniqueFd listener;
  sockaddr_in address{};
  if (is_first) {
    listener = listen_at(address_of(here, 0));
    control.say(std::to_string(local_port(listener)));
  } else {
    address = address_of(peer, static_cast<std::uint16_t>(std::stoi(control.hear())));
  }
  const auto open_one = [&] {
    return std::make_shared<const UniqueFd>(is_first ? accept_one(listener) : connect_to(address));
  };
  auto out = open_one();
  auto in = is_each_way ? open_one() : out;
  if (!is_first) {
    std::swap(out, in);
  }
  return {.out = std::make_unique<TcpLink>(std::move(out), true),
          .in = std::make_unique<TcpLink>(std::move(in), false)};
}

}  // namespace harp_perf
