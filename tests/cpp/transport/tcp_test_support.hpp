// Shared by the TCP transport's tests: worlds of transports in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_transport.hpp"

#include "transport/transport_test_support.hpp"

namespace lightcc::tcp_test {

using namespace transport_test;  // NOLINT: the tests' own helpers

inline constexpr std::uint64_t kWorld = 77;
inline const std::string kSecret = "the secret of this test";
inline TcpTransportOptions make_options(int connections = 2) {
  TcpTransportOptions options;
  options.address = SocketAddress::resolve("127.0.0.1:0").value();
  options.secret = kSecret;
  options.world_id = kWorld;
  options.connections = connections;
  return options;
}

inline std::unique_ptr<Transport> make_transport(const TcpTransportOptions& options) {
  auto transport = make_tcp_transport(options);
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return transport.ok() ? std::move(transport).value() : nullptr;
}

/// Two transports, rank 0 sending to rank 1 on one channel.
struct Pair : TransportPair {
  explicit Pair(int connections = 2) : Pair(make_options(connections), make_options(connections)) {}
  Pair(const TcpTransportOptions& sender_options, const TcpTransportOptions& receiver_options)
      : TransportPair(make_transport(sender_options), make_transport(receiver_options)) {}
};

}  // namespace lightcc::tcp_test
