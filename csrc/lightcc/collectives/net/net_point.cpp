// Send and receive between two members: one block, in messages of the group's chunk size.
//
//   steps 1;  bytes sent by the sender: N
#include <cstddef>
#include <memory>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/net/net_works.hpp"
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

class NetSend final : public NetWork {
 public:
  NetSend(std::shared_ptr<NetLinks> links, const std::byte* in, std::size_t bytes, int peer)
      : NetWork(std::move(links)), in_(in), bytes_(bytes), peer_(peer) {}

 private:
  Status begin() override {
    LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(peer_));
    const PieceCut cut{.bytes = bytes_, .piece_bytes = links().options().chunk_bytes};
    stream_ = NetSendStream(sender, in_, cut);
    return {};
  }
  Result<Progress> step() override { return advance_stream(stream_); }

  const std::byte* in_;
  std::size_t bytes_;
  int peer_;
  NetSendStream stream_;
};

class NetRecv final : public NetWork {
 public:
  NetRecv(std::shared_ptr<NetLinks> links, std::byte* out, std::size_t bytes, int peer)
      : NetWork(std::move(links)), out_(out), bytes_(bytes), peer_(peer) {}

 private:
  Status begin() override {
    LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(peer_));
    const PieceCut cut{.bytes = bytes_, .piece_bytes = links().options().chunk_bytes};
    stream_ = NetRecvStream(receiver, out_, cut);
    return {};
  }
  Result<Progress> step() override { return advance_stream(stream_); }

  std::byte* out_;
  std::size_t bytes_;
  int peer_;
  NetRecvStream stream_;
};

}  // namespace

std::unique_ptr<Work> make_net_send(std::shared_ptr<NetLinks> links,
                                    const std::byte* in,
                                    std::size_t bytes,
                                    int peer) {
  return std::make_unique<NetSend>(std::move(links), in, bytes, peer);
}

std::unique_ptr<Work> make_net_recv(std::shared_ptr<NetLinks> links,
                                    std::byte* out,
                                    std::size_t bytes,
                                    int peer) {
  return std::make_unique<NetRecv>(std::move(links), out, bytes, peer);
}

}  // namespace lightcc
