// Runs a window of steps on each side. (Essay: net_alltoall.hpp.)
#include "lightcc/collectives/net/net_alltoall.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

std::vector<std::size_t> starts_of(const std::vector<std::size_t>& blocks) {
  std::vector<std::size_t> starts;
  std::size_t total = 0;
  for (const std::size_t block : blocks) {
    starts.push_back(total);
    total += block;
  }
  return starts;
}

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

}  // namespace

NetAlltoall::NetAlltoall(std::shared_ptr<NetLinks> links,
                         const std::byte* in,
                         std::vector<std::size_t> send_bytes,
                         std::byte* out,
                         std::vector<std::size_t> recv_bytes)
    : NetWork(std::move(links)),
      in_(in),
      send_bytes_(std::move(send_bytes)),
      out_(out),
      recv_bytes_(std::move(recv_bytes)) {}

Status NetAlltoall::begin() {
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

Result<Progress> NetAlltoall::step() {
  LIGHTCC_ASSIGN_OR_RETURN(const bool received, advance_window(recvs_, recvs_finished_, kSteps));
  LIGHTCC_ASSIGN_OR_RETURN(const bool sent, advance_window(sends_, sends_finished_, kSteps));
  if (sends_finished_ == sends_.size() && recvs_finished_ == recvs_.size()) {
    return Progress::kDone;
  }
  return sent || received ? Progress::kMoved : Progress::kIdle;
}

}  // namespace lightcc
