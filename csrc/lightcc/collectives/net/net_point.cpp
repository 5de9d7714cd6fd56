// Each is one stream. (What it costs: net_point.hpp.)
#include "lightcc/collectives/net/net_point.hpp"

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

template <typename Stream>
Result<Progress> advance_stream(Stream& stream) {
  LIGHTCC_ASSIGN_OR_RETURN(const bool moved, stream.advance());
  if (stream.finished()) {
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

}  // namespace

Status NetSend::begin() {
  LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(peer_));
  const PieceCut cut{.bytes = bytes_, .piece_bytes = links().options().chunk_bytes};
  stream_ = NetSendStream(sender, in_, cut);
  return {};
}

Result<Progress> NetSend::step() {
  return advance_stream(stream_);
}

Status NetRecv::begin() {
  LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(peer_));
  const PieceCut cut{.bytes = bytes_, .piece_bytes = links().options().chunk_bytes};
  stream_ = NetRecvStream(receiver, out_, cut);
  return {};
}

Result<Progress> NetRecv::step() {
  return advance_stream(stream_);
}

}  // namespace lightcc
