// A peer of a TCP transport that sends what a test likes.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"

#include "transport/tcp_test_support.hpp"

namespace lightcc::tcp_test {

inline SocketAddress address_of(const Transport& transport) {
  return must(decode_tcp_handle(transport.handle())).address;
}

inline ChannelHello make_hello(const ChannelId& id, std::uint64_t attempt = 1) {
  ChannelHello hello;
  hello.world_id = kWorld;
  hello.attempt = attempt;
  hello.channel = id;
  hello.count = 1;
  return hello;
}

/// A peer that knows the secret and sends what a test likes.
class RawPeer {
 public:
  RawPeer(Transport& transport, Bytes hello, const std::string& secret = kSecret) {
    auto connector =
        must(AuthConnector::start(address_of(transport),
                                  secret,
                                  std::move(hello),
                                  std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    const auto deadline = std::chrono::steady_clock::now() + kHang;
    while (!fd_.valid() && status_.ok() && std::chrono::steady_clock::now() < deadline) {
      bool moved = false;
      expect_polls(transport, moved);
      auto connected = connector->poll();
      status_ = connected.status();
      if (connected.ok() && connected->has_value()) {
        fd_ = std::move(**connected);
      }
    }
  }
  const Status& status() const { return status_; }
  void send(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send_stripe(const StripeHeader& header, std::size_t payload_bytes) {
    StripeHeaderBytes bytes;
    encode_stripe_header(header, bytes);
    send(bytes);
    send(Bytes(payload_bytes));
  }
  /// Whether the transport closes this connection.
  bool is_closed_by(Transport& transport) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (std::chrono::steady_clock::now() < deadline) {
      bool moved = false;
      expect_polls(transport, moved);
      std::byte byte{};
      const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) {
        return true;
      }
    }
    return false;
  }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  Status status_;
};

}  // namespace lightcc::tcp_test
