// Somebody on the path who changes payloads, between two networks with default settings.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "datapath/unique_fd.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/network.hpp"
#include "endpoint/settings.hpp"
#include "protocol/packet.hpp"
#include "runtime/live.hpp"

namespace harp::on_path_test {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd open_socket() {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in any = loopback(0);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
  constexpr int kBytes = 4 << 20;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &kBytes, sizeof(kBytes));
  return fd;
}

std::uint16_t port_of(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  return ntohs(address.sin_port);
}

/// Forwards what comes to its port to the server, and the answers back, a socket for each of the
/// client's ports. The kernel gives every packet a checksum that is right, as a liar would. One
/// packet of data in eight has a bit of its payload flipped.
class Relay {
 public:
  explicit Relay(std::uint16_t server)
      : server_(loopback(server)), entrance_(open_socket()), thread_([this] { run(); }) {}
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() {
    is_over_.store(true);
    thread_.join();
  }

  std::uint16_t port() const { return port_of(entrance_); }
  std::uint64_t flips() const { return flips_.load(); }

 private:
  void run() {
    while (!is_over_.load()) {
      std::vector<pollfd> watched{{.fd = entrance_.get(), .events = POLLIN, .revents = 0}};
      std::vector<std::uint16_t> clients{0};
      for (const auto& [client, fd] : exits_) {
        watched.push_back({.fd = fd.get(), .events = POLLIN, .revents = 0});
        clients.push_back(client);
      }
      constexpr int kPatienceMs = 5;  // Until it looks whether it is over.
      (void)::poll(watched.data(), watched.size(), kPatienceMs);
      forward(entrance_.get(), [this](const sockaddr_in& from) {
        const std::uint16_t client = ntohs(from.sin_port);
        if (!exits_.contains(client)) {
          exits_.emplace(client, open_socket());
        }
        return std::pair(exits_.at(client).get(), server_);
      });
      for (std::size_t i = 1; i < watched.size(); ++i) {
        forward(watched[i].fd, [&](const sockaddr_in&) {
          return std::pair(entrance_.get(), loopback(clients[i]));
        });
      }
    }
  }
  template <typename Choose>
  void forward(int from, const Choose& choose) {
    sockaddr_in sender{};
    socklen_t bytes = sizeof(sender);
    ssize_t count = 0;
    while ((count = ::recvfrom(from,
                               buffer_.data(),
                               buffer_.size(),
                               MSG_DONTWAIT,
                               reinterpret_cast<sockaddr*>(&sender),
                               &bytes)) > 0) {
      const auto packet = std::span(buffer_).first(static_cast<std::size_t>(count));
      change(packet);
      const auto [to, peer] = choose(sender);
      (void)::sendto(to,
                     packet.data(),
                     packet.size(),
                     MSG_DONTWAIT,
                     reinterpret_cast<const sockaddr*>(&peer),
                     sizeof(peer));
    }
  }
  void change(std::span<std::byte> packet) {
    const auto view = parse_packet(packet);
    if (view && view->header.type == PacketType::kData && view->header.len > 0 &&
        rng_.chance(0.125)) {
      packet[kHeaderBytes + rng_.below(view->header.len)] ^= std::byte{1} << rng_.below(8);
      ++flips_;
    }
  }

  sockaddr_in server_;
  UniqueFd entrance_;
  std::map<std::uint16_t, UniqueFd> exits_;  ///< By the client's port.
  std::array<std::byte, 65536> buffer_{};
  Rng rng_{1};
  std::atomic<std::uint64_t> flips_{0};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

TEST(OnPath, flipped_bits_of_payloads_are_not_delivered_by_default) {
  Settings settings;
  settings.interfaces = "=lo";
  Network left(settings, find_interfaces("=lo"));
  Network right(settings, find_interfaces("=lo"));
  Network::Listening listening = right.listen(0);
  const Relay relay(listening.handle.port);
  listening.handle.port = relay.port();
  LivePair pair;
  pair.acceptor = std::move(listening.acceptor);
  pair.client = left.connect(0, listening.handle);
  ASSERT_TRUE(eventually([&] {
    pair.server = pair.server ? std::move(pair.server) : pair.acceptor->accept();
    return pair.client->poll() == Channel::Life::kOpen && pair.server != nullptr;
  }));
  for (std::uint64_t round = 0; round < 1000 && relay.flips() < 50; ++round) {
    transfer_live(*pair.client, *pair.server, 200'000, round);
    transfer_live(*pair.server, *pair.client, 3'000, round);
    ASSERT_FALSE(HasFailure()) << "after " << relay.flips() << " flipped bits";
  }
  EXPECT_GE(relay.flips(), 50U);
}

}  // namespace
}  // namespace harp::on_path_test
