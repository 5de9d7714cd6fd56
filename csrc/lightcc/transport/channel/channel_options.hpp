// What a transport is told about its channels, whatever carries them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/transport/channel/channel_hello.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

struct ChannelOptions {
  std::string secret;          ///< The job's.
  std::uint64_t world_id = 0;  ///< Connections of any other world are refused.
  int connections = 1;         ///< Per channel that this end sends on, 1..kMaxConnections.
  Duration connect_timeout = std::chrono::seconds(30);
  /// How long a receiver may take nothing of what was sent to it: kTimeout.
  Duration user_timeout = std::chrono::seconds(30);
  /// For how long, and how many, connections may wait for accept().
  Duration park_timeout = std::chrono::seconds(300);
  std::size_t max_parked = 4096;
  const Clock* clock = nullptr;  ///< Null: the system's. Must outlive the transport.

  /// kInvalidArgument, which says of `what` ("TCP") that something is out of range.
  Status check(const char* what) const {
    if (connections < 1 || connections > kMaxConnections) {
      return make_error(ErrorCode::kInvalidArgument,
                        "%s connections per channel: %d is not in 1..%d",
                        what,
                        connections,
                        kMaxConnections);
    }
    if (std::min({connect_timeout, user_timeout, park_timeout}) <= Duration(0) || max_parked == 0) {
      return make_error(
          ErrorCode::kInvalidArgument, "%s timeouts and limits must be positive", what);
    }
    return {};
  }
  /// The hello of connection 0 of a new channel.
  ChannelHello hello(const ChannelId& channel, std::uint64_t attempt) const {
    return {.world_id = world_id,
            .attempt = attempt,
            .channel = channel,
            .count = static_cast<std::uint16_t>(connections)};
  }
};

}  // namespace lightcc
