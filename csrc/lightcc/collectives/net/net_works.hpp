// The Works of a NetGroup, by file. Their arguments are those of Group, and checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

// In a row, which has at most kMaxRowWidth members: all-reduce, and with `gather` off its first
// half: each member gets its own share alone.

/// net_exchange.cpp
std::unique_ptr<Work> make_net_exchange(std::shared_ptr<NetLinks> links,
                                        BucketView bucket,
                                        SharePlan plan,
                                        const Reduction& reduction,
                                        bool gather);
/// All-reduce on levels, of which `links` are the row: each piece goes through the own columns
/// before its result goes to the row.
std::unique_ptr<Work> make_net_exchange(std::shared_ptr<NetLinks> links,
                                        std::shared_ptr<GridState> levels,
                                        BucketView bucket,
                                        const Reduction& reduction);
/// Bytes of a piece that lets an all-reduce of `bytes` overlap with itself, and whose staging stays
/// in cache.
std::size_t exchange_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes);
/// A tensor of a reduce_scatter that has so many bytes or more may be a piece of its own.
constexpr std::size_t min_scattered_bytes(std::size_t chunk_bytes) {
  return chunk_bytes / 4;
}
/// net_flood.cpp
std::unique_ptr<Work> make_net_flood(std::shared_ptr<NetLinks> links,
                                     BucketView bucket,
                                     const Reduction& reduction);
/// Most bytes of a bucket that floods a row: what the extra bytes cost on the wire stays below the
/// hop that they save.
constexpr std::size_t flood_bytes(std::size_t members) {
  constexpr std::size_t kMaxInput = std::size_t{16} << 10;
  constexpr std::size_t kMaxSent = std::size_t{64} << 10;
  return members < 2 ? kMaxInput : std::min(kMaxInput, kMaxSent / (members - 1));
}

/// net_gather.cpp: Group::allgather_bucket(), whose elements are bytes.
std::unique_ptr<Work> make_net_gather(std::shared_ptr<NetLinks> links,
                                      const std::vector<TensorSpan>& tensors,
                                      std::vector<std::size_t> bytes);
/// A tensor of an all-gather that has so many bytes or more shares no message with another one.
constexpr std::size_t lone_tensor_bytes(std::size_t chunk_bytes) {
  return chunk_bytes / 2;
}

// For any number of members: net_broadcast.cpp, net_alltoall.cpp, net_point.cpp, net_barrier.cpp.

/// Most bytes of a broadcast among `members` that a binomial tree carries; more go along a chain.
std::size_t broadcast_tree_bytes(std::size_t members);
std::unique_ptr<Work> make_net_broadcast(std::shared_ptr<NetLinks> links,
                                         std::byte* data,
                                         std::size_t bytes,
                                         int root);
std::unique_ptr<Work> make_net_alltoall(std::shared_ptr<NetLinks> links,
                                        const std::byte* in,
                                        std::vector<std::size_t> send_bytes,
                                        std::byte* out,
                                        std::vector<std::size_t> recv_bytes);
std::unique_ptr<Work> make_net_send(std::shared_ptr<NetLinks> links,
                                    const std::byte* in,
                                    std::size_t bytes,
                                    int peer);
std::unique_ptr<Work> make_net_recv(std::shared_ptr<NetLinks> links,
                                    std::byte* out,
                                    std::size_t bytes,
                                    int peer);
std::unique_ptr<Work> make_net_barrier(std::shared_ptr<NetLinks> links);

}  // namespace lightcc
