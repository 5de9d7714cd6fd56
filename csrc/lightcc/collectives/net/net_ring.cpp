// The ring: the all-reduce of more than 16 members, where a direct exchange would mean too many
// small messages and connections. (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", JPDC 69(2), 2009.)
//
// Member r sends to r+1 only. Each chunk of the bucket (N bytes over all chunks) has one piece per
// member. In step t = 0 .. n-2, r sends the partial result of piece r-1-t and combines what
// arrives, piece r-2-t, with its own contribution; after n-1 steps it owns the full result of piece
// r. In the next n-1 steps u the results go round: r sends piece r-u and receives piece r-1-u.
//
//   steps           2 (n-1) per chunk, kDepth chunks side by side
//   bytes sent by each member   2 (n-1)/n N, exactly: (N - own(r)) + (N - own(r+1)), where own(j)
//   is
//                   what member j owns of the bucket
//   reduce_scatter  the first n-1 steps only: N - own
//
// Numbers. Piece b is combined in the order b+1, b+2, .., n-1, 0, .., b, and float16 and bfloat16
// partial results are rounded at every hop; so bits depend on the cutting, but are the same on
// every member. The prescale is applied where a contribution is first combined, the postscale by
// the owner.
//
// Pipeline. Position k of the channel's sequence is lane k mod D of the k div D-th lane step; a
// lane works off every D-th chunk. A lane has two buffers: what arrives at lane step s lands in
// buffer s mod 2 and leaves from it at s+1. So receive k waits for send k-D (which empties the
// buffer), and send k for receive k-D (which fills it). Both point to earlier positions, so the
// ring cannot lock.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

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

  Status begin() override {
    members_ = static_cast<std::size_t>(links().size());
    rank_ = static_cast<std::size_t>(links().rank());
    steps_ = (gather_ ? 2 : 1) * (members_ - 1);
    // Lanes without a chunk in the last turn have empty pieces, which are no messages.
    const std::size_t turns = (plan_.chunks() + kDepth - 1) / kDepth;
    positions_ = turns * steps_ * kDepth;
    if (positions_ == 0) {
      return {};
    }
    LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(links().neighbour(1)));
    LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(links().neighbour(-1)));
    sends_ = SendQueue(sender);
    recvs_ = RecvQueue(receiver);
    buffers_ = links().scratch(2 * kDepth * plan_.piece_bytes()).data();
    return {};
  }
  Result<Progress> step() override {
    LIGHTCC_ASSIGN_OR_RETURN(bool moved, sends_.settle());
    // What just arrived leaves before the next arrival is combined: the neighbour is waiting for
    // it.
    for (bool again = true; again;) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool expected, post_recv());
      LIGHTCC_ASSIGN_OR_RETURN(const bool sent, post_send());
      again = expected || sent;
      moved = moved || again;
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool finished, finish_recv());
    moved = moved || finished;
    if (sends_.done() == positions_ && recvs_.done() == positions_) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }

  Item item_at(std::size_t position) const {
    const std::size_t lane_step = position / kDepth;
    const std::size_t lane = position % kDepth;
    return {.chunk = lane_step / steps_ * kDepth + lane,
            .step = lane_step % steps_,
            .lane = lane,
            .lane_step = lane_step};
  }
  /// The member whose piece goes out (comes in) at `item`.
  std::size_t outgoing_owner(const Item& item) const {
    return member_before(is_reducing(item) ? item.step + 1 : item.step - (members_ - 1));
  }
  std::size_t incoming_owner(const Item& item) const {
    return member_before(is_reducing(item) ? item.step + 2 : item.step - (members_ - 1) + 1);
  }
  std::size_t member_before(std::size_t distance) const {
    return (rank_ + 2 * members_ - distance) % members_;
  }
  bool is_reducing(const Item& item) const { return item.step + 1 < members_; }
  bool is_last_reducing(const Item& item) const { return item.step + 2 == members_; }
  std::byte* buffer(std::size_t lane, std::size_t lane_step) const {
    return buffers_ + (2 * lane + lane_step % 2) * plan_.piece_bytes();
  }

  Result<bool> post_send() {
    const std::size_t position = sends_.posted();
    if (position == positions_ || sends_.full() ||
        (position >= kDepth && recvs_.done() <= position - kDepth)) {
      return false;
    }
    const Item item = item_at(position);
    const ElementRange range = plan_.piece(item.chunk, outgoing_owner(item));
    if (range.count == 0) {
      sends_.skip();
      return true;
    }
    // The buffer that the step before filled; at step 0 it is free for packing.
    std::byte* const area = buffer(item.lane, item.lane_step + 1);
    const std::byte* from = area;
    if (item.step == 0) {
      from = bucket_.contiguous_in(range);
      if (from == nullptr) {
        bucket_.pack(range, area);
        from = area;
      }
    } else if (!is_reducing(item) && bucket_.contiguous_out(range) != nullptr) {
      from = bucket_.contiguous_out(range);
    }
    LIGHTCC_ASSIGN_OR_RETURN(const RequestId request,
                             sends_.channel().isend({from, range.count * bucket_.element_bytes()}));
    sends_.note(request);
    return true;
  }
  Result<bool> post_recv() {
    const std::size_t position = recvs_.posted();
    if (position == positions_ || recvs_.full() ||
        (position >= kDepth && sends_.done() <= position - kDepth)) {
      return false;
    }
    const Item item = item_at(position);
    const ElementRange range = plan_.piece(item.chunk, incoming_owner(item));
    if (range.count == 0) {
      recvs_.skip();
      return true;
    }
    std::byte* into = buffer(item.lane, item.lane_step);
    if (!is_reducing(item) && bucket_.contiguous_out(range) != nullptr) {
      into = bucket_.contiguous_out(range);
    }
    LIGHTCC_ASSIGN_OR_RETURN(const RequestId request,
                             recvs_.channel().irecv({into, range.count * bucket_.element_bytes()}));
    recvs_.note(request);
    return true;
  }
  Result<bool> finish_recv() {
    const std::size_t position = recvs_.done();
    LIGHTCC_ASSIGN_OR_RETURN(const bool arrived, recvs_.settle_one());
    if (!arrived) {
      return false;
    }
    const Item item = item_at(position);
    const ElementRange range = plan_.piece(item.chunk, incoming_owner(item));
    if (range.count == 0) {
      return true;
    }
    if (is_reducing(item)) {
      combine(item, range);
    } else if (bucket_.contiguous_out(range) == nullptr) {
      bucket_.unpack(
          range, 0, {buffer(item.lane, item.lane_step), range.count * bucket_.element_bytes()});
    }
    return true;
  }
  /// Combines what arrived in the buffer of `item` with the own contribution to `range`.
  void combine(const Item& item, ElementRange range) {
    const std::size_t element = bucket_.element_bytes();
    std::byte* const partial = buffer(item.lane, item.lane_step);
    Reduction reduction = reduction_;
    if (!is_last_reducing(item)) {
      reduction.postscale = 1.0;
    }
    std::byte* const direct = is_last_reducing(item) ? bucket_.contiguous_out(range) : nullptr;
    bucket_.for_each_piece(range, [&](const TensorSpan& span, std::size_t offset) {
      std::byte* const arrived = partial + offset * element;
      const std::array<ReduceSource, 2> sources{
          ReduceSource{.data = arrived, .prescale = item.step == 0},
          ReduceSource{.data = span.in, .prescale = true}};
      reduce(sources,
             direct != nullptr ? direct + offset * element : arrived,
             nullptr,
             span.count,
             reduction,
             links().options().simd);
    });
    if (is_last_reducing(item) && direct == nullptr) {
      bucket_.unpack(range, 0, {partial, range.count * element});
    }
  }

  std::size_t members_ = 0;
  std::size_t rank_ = 0;
  std::size_t steps_ = 0;      ///< Each chunk takes so many.
  std::size_t positions_ = 0;  ///< The whole sequence has so many.
  SendQueue sends_;
  RecvQueue recvs_;
  std::byte* buffers_ = nullptr;
};

}  // namespace

std::size_t ring_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes) {
  constexpr std::size_t kMinPieceBytes = std::size_t{8} << 10;
  const std::size_t overlapping = std::max(kMinPieceBytes, bytes / members / 4);
  return std::max<std::size_t>(64, std::min(chunk_bytes, overlapping));
}

std::unique_ptr<Work> make_net_ring(std::shared_ptr<NetLinks> links,
                                    BucketView bucket,
                                    SharePlan plan,
                                    const Reduction& reduction,
                                    bool gather) {
  return std::make_unique<NetRing>(
      std::move(links), std::move(bucket), std::move(plan), reduction, gather);
}

}  // namespace lightcc
