// The Works of a NetGroup, by file. Their arguments are those of Group, and checked.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Members up to which contributions meet at one owner and are combined in member order.
inline constexpr int kMaxDirectMembers = 16;

// All-reduce, and with `gather` off its first half: each member gets its own share alone.

/// net_exchange.cpp, for at most kMaxDirectMembers members.
std::unique_ptr<Work> make_net_exchange(std::shared_ptr<NetLinks> links,
                                        BucketView bucket,
                                        SharePlan plan,
                                        const Reduction& reduction,
                                        bool gather);
/// Bytes of a piece that lets an all-reduce of `bytes` overlap with itself, and whose staging stays
/// in cache.
std::size_t exchange_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes);
/// net_ring.cpp, for at least two members.
std::unique_ptr<Work> make_net_ring(std::shared_ptr<NetLinks> links,
                                    BucketView bucket,
                                    SharePlan plan,
                                    const Reduction& reduction,
                                    bool gather);
/// Bytes of a piece for a ring reduction of `bytes`.
std::size_t ring_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes);
/// net_flood.cpp, for at most kMaxDirectMembers members.
std::unique_ptr<Work> make_net_flood(std::shared_ptr<NetLinks> links,
                                     BucketView bucket,
                                     const Reduction& reduction);
/// Whether a bucket of `bytes` among `members` is small enough: what the extra bytes cost on the
/// wire stays below the hop that they save.
constexpr bool is_flood_sized(std::size_t bytes, std::size_t members) {
  constexpr std::size_t kMaxInput = std::size_t{16} << 10;
  constexpr std::size_t kMaxSent = std::size_t{64} << 10;
  return bytes <= kMaxInput && bytes * (members - 1) <= kMaxSent;
}

// All-gather: net_gather.cpp.

/// For at most kMaxDirectMembers members.
std::unique_ptr<Work> make_net_gather_direct(std::shared_ptr<NetLinks> links,
                                             const std::byte* in,
                                             std::byte* out,
                                             std::vector<std::size_t> bytes);
std::unique_ptr<Work> make_net_gather_ring(std::shared_ptr<NetLinks> links,
                                           const std::byte* in,
                                           std::byte* out,
                                           std::vector<std::size_t> bytes);
/// From and to the tensors of a bucket, of which this member contributes `own`, by the all-gather
/// that `start` begins: through memory of its own where they do not lie together.
using StartGather = std::function<std::unique_ptr<Work>(const std::byte* in, std::byte* out)>;
std::unique_ptr<Work> make_net_gather_bucket(BucketView bucket,
                                             ElementRange own,
                                             const StartGather& start);

// The others: net_broadcast.cpp, net_alltoall.cpp, net_point.cpp, net_barrier.cpp.

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
