// All-gather of blocks of any sizes B_0 .. B_{n-1}, within a row: everyone sends its block to
// everyone, at once, straight to where it belongs.
//
//   steps 1;  bytes sent by member r: (n-1) B_r
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

void copy_own(const std::byte* in, std::byte* out, std::size_t bytes) {
  if (bytes != 0 && in != out) {
    std::memcpy(out, in, bytes);
  }
}

class NetGather final : public NetWork {
 public:
  NetGather(std::shared_ptr<NetLinks> links,
            const std::byte* in,
            std::byte* out,
            std::vector<std::size_t> bytes)
      : NetWork(std::move(links)), in_(in), out_(out), bytes_(std::move(bytes)) {}

 private:
  Status begin() override {
    const std::vector<std::size_t> offsets = starts_of(bytes_);
    const auto own = static_cast<std::size_t>(links().rank());
    const std::size_t piece = links().options().chunk_bytes;
    for (int distance = 1; distance < links().size(); ++distance) {
      const int to = links().neighbour(distance);
      const int from = links().neighbour(-distance);
      const auto source = static_cast<std::size_t>(from);
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(to));
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(from));
      sends_.emplace_back(sender, in_, PieceCut{.bytes = bytes_[own], .piece_bytes = piece});
      recvs_.emplace_back(receiver,
                          out_ + offsets[source],
                          PieceCut{.bytes = bytes_[source], .piece_bytes = piece});
    }
    copy_own(in_, out_ + offsets[own], bytes_[own]);
    return {};
  }
  Result<Progress> step() override {
    bool moved = false;
    bool finished = true;
    for (NetSendStream& stream : sends_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool sent, stream.advance());
      moved = moved || sent;
      finished = finished && stream.finished();
    }
    for (NetRecvStream& stream : recvs_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool received, stream.advance());
      moved = moved || received;
      finished = finished && stream.finished();
    }
    if (finished) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }

  const std::byte* in_;
  std::byte* out_;
  std::vector<std::size_t> bytes_;
  std::vector<NetSendStream> sends_;
  std::vector<NetRecvStream> recvs_;
};

}  // namespace

std::unique_ptr<Work> make_net_gather(std::shared_ptr<NetLinks> links,
                                      const std::byte* in,
                                      std::byte* out,
                                      std::vector<std::size_t> bytes) {
  return std::make_unique<NetGather>(std::move(links), in, out, std::move(bytes));
}

}  // namespace lightcc
