// One block of memory to, or from, one member, as messages of bounded size with few outstanding.
//
// The parts that gather, alltoall, send and recv are made of. An empty block is no message at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"

namespace lightcc {

/// Messages of one block that may be outstanding.
inline constexpr std::size_t kStreamWindow = 8;
static_assert(kStreamWindow <= SendQueue::kMax);

/// A block cut into messages of `piece_bytes`, the last one perhaps shorter.
struct PieceCut {
  std::size_t bytes = 0;
  std::size_t piece_bytes = 1;

  std::size_t pieces() const { return bytes / piece_bytes + (bytes % piece_bytes != 0 ? 1 : 0); }
  std::size_t offset(std::size_t piece) const { return piece * piece_bytes; }
  std::size_t size_bytes(std::size_t piece) const {
    return std::min(piece_bytes, bytes - offset(piece));
  }
};

/// Where each of `blocks`, which lie in a row, begins.
inline std::vector<std::size_t> starts_of(const std::vector<std::size_t>& blocks) {
  std::vector<std::size_t> starts;
  std::size_t total = 0;
  for (const std::size_t block : blocks) {
    starts.push_back(total);
    total += block;
  }
  return starts;
}

class NetSendStream {
 public:
  NetSendStream() = default;
  NetSendStream(SendChannel* channel, const std::byte* data, const PieceCut& cut)
      : queue_(channel), data_(data), cut_(cut) {}

  bool finished() const { return queue_.done() == cut_.pieces(); }
  /// Posts and completes what it can of the first `ready` pieces; true when anything moved.
  Result<bool> advance(std::size_t ready) {
    auto moved = queue_.settle();
    const std::size_t limit = std::min({ready, cut_.pieces(), queue_.done() + kStreamWindow});
    while (moved.ok() && queue_.posted() < limit) {
      const std::size_t piece = queue_.posted();
      const auto request =
          queue_.channel().isend({data_ + cut_.offset(piece), cut_.size_bytes(piece)});
      if (!request.ok()) {
        return request.status();
      }
      queue_.note(request.value());
      moved = true;
    }
    return moved;
  }
  Result<bool> advance() { return advance(cut_.pieces()); }

 private:
  SendQueue queue_;
  const std::byte* data_ = nullptr;
  PieceCut cut_;
};

class NetRecvStream {
 public:
  NetRecvStream() = default;
  NetRecvStream(RecvChannel* channel, std::byte* data, const PieceCut& cut)
      : queue_(channel), data_(data), cut_(cut) {}

  bool finished() const { return queue_.done() == cut_.pieces(); }
  /// Pieces at the front that are there.
  std::size_t arrived() const { return queue_.done(); }
  /// Posts and completes what it can; true when anything moved.
  Result<bool> advance() {
    auto moved = queue_.settle();
    const std::size_t limit = std::min(cut_.pieces(), queue_.done() + kStreamWindow);
    while (moved.ok() && queue_.posted() < limit) {
      const std::size_t piece = queue_.posted();
      const auto request =
          queue_.channel().irecv({data_ + cut_.offset(piece), cut_.size_bytes(piece)});
      if (!request.ok()) {
        return request.status();
      }
      queue_.note(request.value());
      moved = true;
    }
    return moved;
  }

 private:
  RecvQueue queue_;
  std::byte* data_ = nullptr;
  PieceCut cut_;
};

}  // namespace lightcc
