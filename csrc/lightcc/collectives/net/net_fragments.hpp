// Receives of messages that have no place where they lie together: a Work takes their fragments, as
// they arrive, to where they belong.
#pragma once

#include <cstddef>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// Posts a receive of `bytes` bytes into `into`. Null: in fragments, which go to `sink` where the
/// transport has sinks, and else wait for take_fragments().
inline Result<RequestId> receive_message(RecvChannel& channel,
                                         std::byte* into,
                                         std::size_t bytes,
                                         const FragmentSink& sink) {
  if (into != nullptr) {
    return channel.irecv({into, bytes});
  }
  return channel.can_receive_to_sink() ? channel.irecv_to_sink(bytes, sink)
                                       : channel.irecv_fragments(bytes);
}

/// Calls take(fragment) for what has arrived of the oldest receive; true when there was any.
/// Nothing arrives here where the transport has sinks.
template <typename Take>
Result<bool> take_fragments(RecvQueue& recvs, Take take) {
  RecvChannel& channel = recvs.channel();
  bool moved = false;
  while (!channel.can_receive_to_sink()) {
    LIGHTCC_ASSIGN_OR_RETURN(const auto fragment, channel.next_fragment(recvs.oldest()));
    if (!fragment.has_value()) {
      break;
    }
    const Status taken = take(*fragment);
    channel.release(*fragment);
    LIGHTCC_RETURN_IF_ERROR(taken);
    moved = true;
  }
  return moved;
}

/// Completes all receives that can be, each after take_arrived() has taken what it has fragments
/// of; true when anything moved.
template <typename TakeArrived>
Result<bool> settle_taking(RecvQueue& recvs, TakeArrived take_arrived) {
  bool moved = false;
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool taken, take_arrived());
    LIGHTCC_ASSIGN_OR_RETURN(const bool settled, recvs.settle_one());
    moved = moved || taken || settled;
    if (!settled) {
      return moved;
    }
  }
}

/// kInternal unless `fragment` is whole elements of a message of `bytes` bytes.
inline Status check_fragment(const Fragment& fragment,
                             std::size_t bytes,
                             std::size_t element_bytes) {
  if (fragment.offset <= bytes && fragment.bytes.size() <= bytes - fragment.offset &&
      fragment.offset % element_bytes == 0 && fragment.bytes.size() % element_bytes == 0) {
    return {};
  }
  return make_error(ErrorCode::kInternal,
                    "the transport gave a fragment of %zu bytes at %zu of a message of %zu",
                    fragment.bytes.size(),
                    fragment.offset,
                    bytes);
}

}  // namespace lightcc
