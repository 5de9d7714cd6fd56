// All-reduce and reduce-scatter among many members, around a ring. (Essay: net_ring.cpp.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Bytes of a piece for a ring reduction of `bytes`.
std::size_t ring_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes);

/// For at least two members.
class NetRing final : public NetReduction {
 public:
  using NetReduction::NetReduction;

 private:
  /// Chunks that travel side by side, so that one is on the wire while another is combined.
  static constexpr std::size_t kDepth = 4;

  /// What one position of the sequence is.
  struct Item {
    std::size_t chunk = 0;
    std::size_t step = 0;       ///< Its chunk's: 0 .. steps_ - 1.
    std::size_t lane = 0;       ///< One of kDepth.
    std::size_t lane_step = 0;  ///< Steps of its lane before it: says which of two buffers it uses.
  };

  Status begin() override;
  Result<Progress> step() override;

  Item item_at(std::size_t position) const;
  /// The member whose piece goes out (comes in) at `item`.
  std::size_t outgoing_owner(const Item& item) const;
  std::size_t incoming_owner(const Item& item) const;
  std::size_t member_before(std::size_t distance) const;
  bool is_reducing(const Item& item) const { return item.step + 1 < members_; }
  bool is_last_reducing(const Item& item) const { return item.step + 2 == members_; }
  std::byte* buffer(std::size_t lane, std::size_t lane_step) const {
    return buffers_ + (2 * lane + lane_step % 2) * plan_.piece_bytes();
  }

  Result<bool> post_send();
  Result<bool> post_recv();
  Result<bool> finish_recv();
  void combine(const Item& item, ElementRange range);

  std::size_t members_ = 0;
  std::size_t rank_ = 0;
  std::size_t steps_ = 0;      ///< Each chunk takes so many.
  std::size_t positions_ = 0;  ///< The whole sequence has so many.
  SendQueue sends_;
  RecvQueue recvs_;
  std::byte* buffers_ = nullptr;
};

}  // namespace lightcc
