// All-to-all of blocks of any sizes, pair by pair.
//
// In step k = 1 .. n-1 member r sends to r+k and receives from r-k, so every member is the target
// of one other in each step. kSteps steps run at once: enough to hide latency, few enough that no
// member is flooded by all others. Sends and receives move on independently; the smallest
// unfinished step is always among those that run on both of its ends, so nothing can lock.
//
//   steps n-1, kSteps at once;  bytes sent: what goes to other members
#include <algorithm>
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

/// Advances the first `window` unfinished streams; true when anything moved.
template <typename Stream>
Result<bool> advance_window(std::vector<Stream>& streams,
                            std::size_t& finished,
                            std::size_t window) {
  bool moved = false;
  while (finished < streams.size() && streams[finished].finished()) {
    ++finished;
  }
  const std::size_t end = std::min(streams.size(), finished + window);
  for (std::size_t i = finished; i < end; ++i) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool one, streams[i].advance());
    moved = moved || one;
  }
  while (finished < streams.size() && streams[finished].finished()) {
    ++finished;
    moved = true;  // The window moved on: there is more to do.
  }
  return moved;
}

class NetAlltoall final : public NetWork {
 public:
  NetAlltoall(std::shared_ptr<NetLinks> links,
              const std::byte* in,
              std::vector<std::size_t> send_bytes,
              std::byte* out,
              std::vector<std::size_t> recv_bytes)
      : NetWork(std::move(links)),
        in_(in),
        send_bytes_(std::move(send_bytes)),
        out_(out),
        recv_bytes_(std::move(recv_bytes)) {}

 private:
  static constexpr std::size_t kSteps = 4;

  Status begin() override {
    const std::vector<std::size_t> send_starts = starts_of(send_bytes_);
    const std::vector<std::size_t> recv_starts = starts_of(recv_bytes_);
    const std::size_t piece = links().options().chunk_bytes;
    for (int distance = 1; distance < links().size(); ++distance) {
      const int to = links().neighbour(distance);
      const int from = links().neighbour(-distance);
      const auto target = static_cast<std::size_t>(to);
      const auto source = static_cast<std::size_t>(from);
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(to));
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(from));
      sends_.emplace_back(sender,
                          in_ + send_starts[target],
                          PieceCut{.bytes = send_bytes_[target], .piece_bytes = piece});
      recvs_.emplace_back(receiver,
                          out_ + recv_starts[source],
                          PieceCut{.bytes = recv_bytes_[source], .piece_bytes = piece});
    }
    const auto own = static_cast<std::size_t>(links().rank());
    if (send_bytes_[own] != 0) {
      std::memcpy(out_ + recv_starts[own], in_ + send_starts[own], send_bytes_[own]);
    }
    return {};
  }
  Result<Progress> step() override {
    LIGHTCC_ASSIGN_OR_RETURN(const bool received, advance_window(recvs_, recvs_finished_, kSteps));
    LIGHTCC_ASSIGN_OR_RETURN(const bool sent, advance_window(sends_, sends_finished_, kSteps));
    if (sends_finished_ == sends_.size() && recvs_finished_ == recvs_.size()) {
      return Progress::kDone;
    }
    return sent || received ? Progress::kMoved : Progress::kIdle;
  }

  const std::byte* in_;
  std::vector<std::size_t> send_bytes_;
  std::byte* out_;
  std::vector<std::size_t> recv_bytes_;
  std::vector<NetSendStream> sends_;  ///< Step k at k-1.
  std::vector<NetRecvStream> recvs_;
  std::size_t sends_finished_ = 0;  ///< Steps at the front that are complete.
  std::size_t recvs_finished_ = 0;
};

}  // namespace

std::unique_ptr<Work> make_net_alltoall(std::shared_ptr<NetLinks> links,
                                        const std::byte* in,
                                        std::vector<std::size_t> send_bytes,
                                        std::byte* out,
                                        std::vector<std::size_t> recv_bytes) {
  return std::make_unique<NetAlltoall>(
      std::move(links), in, std::move(send_bytes), out, std::move(recv_bytes));
}

}  // namespace lightcc
