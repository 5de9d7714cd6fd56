// All-reduce and reduce-scatter among few members by direct exchange. (Essay: net_exchange.cpp.)
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/chunk_schedule.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Members up to which contributions meet at one owner and are combined in member order.
inline constexpr int kMaxDirectMembers = 16;

/// Chunks by which contributions run ahead of results.
inline constexpr std::size_t kExchangeDepth = 4;

/// Bytes of a piece that lets an all-reduce of `bytes` overlap with itself, and whose staging stays
/// in cache.
std::size_t exchange_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes);

class NetExchange final : public NetReduction {
 public:
  using NetReduction::NetReduction;

 private:
  /// A share of a chunk is scattered, a result is gathered.
  using Item = ChunkSchedule::Step;
  /// What a transport that shows fragments is given as context.
  struct Taking {
    NetExchange* exchange = nullptr;
    int member = 0;
    Item item{};
  };
  struct Peer {
    int member = 0;
    std::size_t index = 0;  ///< Among the peers: the place of its staging.
    SendQueue sends;
    RecvQueue recvs;
    std::array<Taking, RecvQueue::kMax> takings{};  ///< By position.
  };

  Status begin() override;
  Result<Progress> step() override;

  // The sequence of positions on every channel.
  std::size_t positions() const { return gather_ ? 2 * plan_.chunks() : plan_.chunks(); }

  Result<bool> advance_sends(Peer& peer);
  Result<bool> advance_recvs(Peer& peer);
  Result<bool> reduce_next();
  Result<bool> post_send(Peer& peer);
  Result<bool> post_recv(Peer& peer);
  Result<bool> take_fragments(Peer& peer);
  Status take_fragment(int member, const Item& item, const Fragment& fragment);
  static void take_shown(void* context, const Fragment& fragment);
  void reduce_part(std::size_t chunk,
                   std::size_t first,
                   std::size_t count,
                   const std::byte* streamed);
  bool results_left(std::size_t chunk) const;

  ElementRange piece(std::size_t chunk, int member) const {
    return plan_.piece(chunk, static_cast<std::size_t>(member));
  }
  int me() const { return links().rank(); }
  std::byte* stage(std::size_t chunk, std::size_t index) const;
  std::byte* pack_area(std::size_t chunk, std::size_t index) const;
  std::byte* result_area(std::size_t chunk) const;

  bool streaming_ = false;        ///< Two members: reduce out of the transport's fragments.
  std::size_t lead_ = 0;          ///< min(kExchangeDepth, chunks).
  ChunkSchedule schedule_{0, 1};  ///< Orders positions; without `gather`, shares alone.
  std::size_t reduced_ = 0;       ///< Chunks whose own share is combined.
  std::vector<Peer> peers_;
  std::byte* stage_ = nullptr;
  std::byte* pack_ = nullptr;
  std::byte* results_ = nullptr;
};

}  // namespace lightcc
