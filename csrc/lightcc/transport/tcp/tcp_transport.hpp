// The built-in transport: messages over several TCP connections per channel.
//
// Where to read on: tcp_frame.hpp (what is on the wire), tcp_loop.hpp (events, rate limit),
// tcp_sender.hpp and tcp_receiver.hpp (how the two ends of a channel move bytes), tcp_acceptor.hpp
// (how sockets come in); channel/ has the rest of a channel, which plugins share.
//
// Every connection proves the job secret before anything else is read from it
// (net/authenticated.hpp); the payload is not encrypted. What user_timeout does not see is
// the engine's to watch: a sender that is alive and has nothing to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/channel/channel_options.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// user_timeout is also how long the other host may be silent (data unacknowledged, keepalives
/// unanswered).
struct TcpTransportOptions : ChannelOptions {
  TcpTransportOptions() { connections = 2; }

  SocketAddress address;  ///< To listen on and to be reached at: one address, usually with port 0.
  /// A cap on what all channels of this transport send together, headers included; 0: none. For
  /// tests on fast links.
  std::int64_t rate_bytes_per_s = 0;
  /// Sockets that have not proved the secret. More peers than that are served one after another.
  std::size_t max_pending = 256;
};

/// Listens, and is ready to connect and accept. bytes_sent() and bytes_received() count messages
/// and their headers, not the handshakes. A channel that outlives its transport moves no more.
/// Thread: one for the transport and all its channels. Blocks: never.
/// Errors: kInvalidArgument (options), kSystem (cannot listen).
Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpTransportOptions& options);

}  // namespace lightcc
