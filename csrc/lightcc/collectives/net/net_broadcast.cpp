// Broadcast of N bytes: every member passes each piece on to its children as soon as it is there.
//
// Two trees, chosen by size, the same machine:
//   N <= 32 KiB n: binomial tree.  Latency counts: ceil(log2 n) hops, each of all N bytes.
//     bytes sent: N times the children of the member, (n-1) N in all
//   larger: a chain from the root up, in pieces. Bandwidth counts: every link carries N once, all
//   at
//     the same time; the fill of n-2 pieces is kept below 1/8 of N by the size of the pieces.
//     bytes sent: N by each member but the last
// Scatter plus all-gather would send 2 (n-1)/n N through the root's link and touch every pair of
// members, for no gain over a chain whose fill is small.
#include <algorithm>
#include <cstddef>
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

// Where n-2 more hops of latency cost less than log2(n)-1 more transfers, on 25 Gb/s Ethernet.
constexpr std::size_t kTreeBytesPerMember = std::size_t{32} << 10;

class NetBroadcast final : public NetWork {
 public:
  NetBroadcast(std::shared_ptr<NetLinks> links, std::byte* data, std::size_t bytes, int root)
      : NetWork(std::move(links)), data_(data), bytes_(bytes), root_(root) {}

 private:
  Status begin() override {
    const int size = links().size();
    const int position = (links().rank() + size - root_) % size;
    is_root_ = position == 0;
    const auto members = static_cast<std::size_t>(size);
    std::vector<int> children;
    const std::size_t chunk = links().options().chunk_bytes;
    if (bytes_ > broadcast_tree_bytes(members)) {
      if (position + 1 < size) {
        children.push_back(position + 1);
      }
      constexpr std::size_t kMinPieceBytes = std::size_t{8} << 10;
      const std::size_t filling = std::max(kMinPieceBytes, bytes_ / (8 * members));
      return join(
          position - 1, children, {.bytes = bytes_, .piece_bytes = std::min(chunk, filling)});
    }
    // The lowest bit set in `place` leads to the parent; the bits below it lead to the children, of
    // which the farthest, with the largest subtree, comes first.
    int bit = 1;
    while (bit < size && (position & bit) == 0) {
      bit *= 2;
    }
    for (int below = bit / 2; below > 0; below /= 2) {
      if (position + below < size) {
        children.push_back(position + below);
      }
    }
    return join(position - bit, children, {.bytes = bytes_, .piece_bytes = chunk});
  }
  Result<Progress> step() override {
    bool moved = false;
    bool finished = true;
    if (!is_root_) {
      LIGHTCC_ASSIGN_OR_RETURN(moved, from_parent_.advance());
      finished = from_parent_.finished();
    }
    for (NetSendStream& stream : to_children_) {
      const auto sent = is_root_ ? stream.advance() : stream.advance(from_parent_.arrived());
      if (!sent.ok()) {
        return sent.status();
      }
      moved = moved || sent.value();
      finished = finished && stream.finished();
    }
    if (finished) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }
  /// Opens the stream from the parent (not at the root) and those to the children. Places count
  /// from the root.
  Status join(int parent_position, const std::vector<int>& child_positions, const PieceCut& cut) {
    const int size = links().size();
    if (!is_root_) {
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver,
                               links().receiver((parent_position + root_) % size));
      from_parent_ = NetRecvStream(receiver, data_, cut);
    }
    for (const int child : child_positions) {
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender((child + root_) % size));
      to_children_.emplace_back(sender, data_, cut);
    }
    return {};
  }

  std::byte* data_;
  std::size_t bytes_;
  int root_;
  bool is_root_ = false;
  NetRecvStream from_parent_;
  std::vector<NetSendStream> to_children_;
};

}  // namespace

std::size_t broadcast_tree_bytes(std::size_t members) {
  return members * kTreeBytesPerMember;
}

std::unique_ptr<Work> make_net_broadcast(std::shared_ptr<NetLinks> links,
                                         std::byte* data,
                                         std::size_t bytes,
                                         int root) {
  return std::make_unique<NetBroadcast>(std::move(links), data, bytes, root);
}

}  // namespace lightcc
