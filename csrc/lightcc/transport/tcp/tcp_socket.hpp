// How the transport sets up its sockets and names what goes wrong with them.
#pragma once

#include <cstdint>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

/// No delay; and the connection breaks (ETIMEDOUT) when for `user_timeout` the other host is silent
/// (data unacknowledged, keepalives unanswered) or takes nothing of what waits to be sent: a
/// stopped process, or one that posts no receive.
Status tune_socket(int fd, Duration user_timeout);

/// What `error_number` (an errno value of a socket) means for a channel to `rank`: kTimeout,
/// kPeerFailed or kSystem, blaming nobody yet. `doing`: "sending to", "receiving from".
Status socket_error(int error_number, std::uint32_t rank, const char* doing);

}  // namespace lightcc
