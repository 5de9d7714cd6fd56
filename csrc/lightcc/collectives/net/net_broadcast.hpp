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
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

class NetBroadcast final : public NetWork {
 public:
  NetBroadcast(std::shared_ptr<NetLinks> links, std::byte* data, std::size_t bytes, int root);

 private:
  Status begin() override;
  Result<Progress> step() override;
  /// Opens the stream from the parent (not at the root) and those to the children. Places count
  /// from the root.
  Status join(int parent_position, const std::vector<int>& child_positions, const PieceCut& cut);

  std::byte* data_;
  std::size_t bytes_;
  int root_;
  bool is_root_ = false;
  NetRecvStream from_parent_;
  std::vector<NetSendStream> to_children_;
};

}  // namespace lightcc
