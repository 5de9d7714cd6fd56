// TCP sockets of the reference plugin. Everything is non-blocking and close-on-exec.
#pragma once

#include "datapath/address.hpp"
#include "datapath/unique_fd.hpp"

namespace reftcp {

using harp::UniqueFd;

/// A peer whose kernel does not answer for so long is gone.
inline constexpr int kPeerTimeoutS = 30;

/// A socket that listens at `address`, any port, which is put there. Not open: errno says why.
UniqueFd listen_at(harp::Address* address);

/// A socket on its way from `source` to `peer`. Not open: errno says why.
UniqueFd start_to_connect(harp::Address source, const harp::Address& peer);

/// What tuning a connected socket needs at both ends.
void tune(int fd);

/// Whether a call on a non-blocking socket failed only because it is not ready.
bool would_block(int error);

}  // namespace reftcp
