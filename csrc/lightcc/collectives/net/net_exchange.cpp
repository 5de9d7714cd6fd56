// Direct exchange: the all-reduce of a row, which has at most 16 members.
//
// The bucket (N bytes over all tensors) is cut into chunks and each chunk into n pieces; member j
// owns the j-th piece of every chunk. For each chunk every member sends every other the piece that
// the other owns (a "share", S), combines what it gets with its own in the order of the row's
// levels (grid_order.hpp), and sends the outcome to everybody (a "result", R). One owner and one
// order per element: the bits depend on the inputs alone.
//
//   steps           2 per chunk (each a full exchange); chunks overlap, so about chunks + 1 in all
//   bytes sent by each member   (n-1)/n N of shares + (n-1)/n N of results = 2 (n-1)/n N,
//                   exactly: (N - own) + (n-1) own, where `own` is what it owns of the bucket
//   reduce_scatter  the shares only: N - own
//
// On levels (grid_shape.hpp), the members are a row. What is combined of a piece is the row's sum
// alone, so it is all-reduced with those of the other rows in its column, and its result is sent
// after that. Columns work on one chunk while the row exchanges the next ones, so the wire does not
// wait for a level.
//
// Pipeline. Every channel carries, with D = kExchangeDepth chunks of lead,
//   S0 S1 .. S(D-1)  R0 S(D)  R1 S(D+1) ...  and the remaining results,
// so that both directions of every link stay busy while a chunk is combined. Both ends know the
// sequence; pieces without elements are left out on both. Staging holds D pieces per peer.
// With two members there is no staging: a fragment is combined with the own piece straight out of
// the transport's buffer.
//
// Progress. Post receive S(c) waits for the combining of chunk c-D (its staging), the combining of
// c for the delivery of results c-D (their memory), and the receive of R(c) from p for the delivery
// of the own S(c) to p (in place, it reads the very memory that R(c) overwrites). All of these
// point to smaller chunks, or from R(c) to S(c), so some member can always go on. On levels R(c)
// waits for the column of c as well, which waits for the combining of c in the other rows.
//
// Memory. Pieces travel straight from and to the tensors. Only a piece that touches several
// tensors, or a null input, is packed, and only such a result is unpacked (from the transport's
// fragments).
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/chunk_schedule.hpp"
#include "lightcc/collectives/grid/grid_order.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_fragments.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

// Contributions that wait to be combined have so many; about an L2 cache.
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
// Below this a message costs more than the overlap that it buys.
constexpr std::size_t kMinExchangeBytes = std::size_t{32} << 10;
// The same on levels, where each piece has messages on all of them.
constexpr std::size_t kMinLevelBytes = std::size_t{128} << 10;

bool is_share(const ChunkSchedule::Step& item) {
  return item.half == ChunkSchedule::Half::kScatter;
}

/// Chunks by which contributions run ahead of results.
constexpr std::size_t kExchangeDepth = 4;

class NetExchange final : public NetWork {
 public:
  NetExchange(std::shared_ptr<NetLinks> links,
              BucketView bucket,
              SharePlan plan,
              const Reduction& reduction,
              bool gather,
              std::shared_ptr<GridState> levels = nullptr)
      : NetWork(std::move(links)),
        levels_(std::move(levels)),
        bucket_(std::move(bucket)),
        plan_(std::move(plan)),
        reduction_(levels_ == nullptr ? reduction : within_blocks(reduction)),
        column_reduction_(between_blocks(reduction)),
        gather_(gather) {}

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

  Status begin() override {
    const int size = links().size();
    lead_ = std::min(kExchangeDepth, plan_.chunks());
    schedule_ = ChunkSchedule(plan_.chunks(), gather_ ? lead_ : plan_.chunks());
    streaming_ = size == 2;
    const auto others = static_cast<std::size_t>(size - 1);
    for (int distance = 1; distance < size && plan_.chunks() != 0; ++distance) {
      Peer peer{
          .member = links().neighbour(distance), .index = peers_.size(), .sends = {}, .recvs = {}};
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(peer.member));
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(peer.member));
      peer.sends = SendQueue(sender);
      peer.recvs = RecvQueue(receiver);
      peers_.push_back(peer);
    }
    std::size_t max_shares = 1;
    for (int member = 0; member < size; ++member) {
      max_shares = std::max(max_shares, first_share(member + 1) - first_share(member));
    }
    slot_bytes_ = max_shares * plan_.piece_bytes();
    const std::size_t slot = lead_ * slot_bytes_;
    const std::size_t stages = streaming_ ? 0 : others * slot;
    const std::size_t packs = bucket_.scattered() ? others * slot : 0;
    const std::size_t results = bucket_.scattered() && gather_ ? slot : 0;
    const std::span<std::byte> scratch = links().scratch(stages + packs + results);
    stage_ = scratch.data();
    pack_ = scratch.data() + stages;
    results_ = pack_ + packs;
    return {};
  }
  Result<Progress> step() override {
    bool moved = false;
    for (Peer& peer : peers_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool received, advance_recvs(peer));
      moved = moved || received;
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool combined, reduce_next());
    LIGHTCC_ASSIGN_OR_RETURN(const bool exchanged, exchange_columns());
    moved = moved || combined || exchanged;
    bool finished = ready_ == plan_.chunks();
    for (Peer& peer : peers_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool sent, advance_sends(peer));
      moved = moved || sent;
      finished = finished && peer.sends.done() == positions() && peer.recvs.done() == positions();
    }
    if (finished) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }

  // The sequence of positions on every channel.
  std::size_t positions() const { return gather_ ? 2 * plan_.chunks() : plan_.chunks(); }

  Result<bool> advance_sends(Peer& peer) {
    auto moved = peer.sends.settle();
    while (moved.ok() && peer.sends.posted() < positions() && !peer.sends.full()) {
      const auto posted = post_send(peer);
      if (!posted.ok()) {
        return posted;
      }
      if (!posted.value()) {
        break;
      }
      moved = true;
    }
    return moved;
  }
  Result<bool> advance_recvs(Peer& peer) {
    bool moved = false;
    while (peer.recvs.posted() < positions() && !peer.recvs.full()) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool posted, post_recv(peer));
      if (!posted) {
        break;
      }
      moved = true;
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool settled,
                             settle_taking(peer.recvs, [&] { return take_arrived(peer); }));
    return moved || settled;
  }
  Result<bool> reduce_next() {
    if (reduced_ == plan_.chunks()) {
      return false;
    }
    const std::size_t position = schedule_.scatter_at(reduced_);
    const bool arrived =
        std::ranges::all_of(peers_, [&](const Peer& peer) { return peer.recvs.done() > position; });
    if (!arrived || !results_left(reduced_)) {
      return false;
    }
    if (!streaming_) {
      reduce_part(reduced_, 0, piece(reduced_, me()).count, nullptr);
    }
    ++reduced_;
    ready_ = levels_ == nullptr ? reduced_ : ready_;
    return true;
  }
  /// Takes the row's sums through the own columns, one chunk after another.
  Result<bool> exchange_columns() {
    if (ready_ == reduced_) {
      return false;
    }
    if (columns_ == nullptr) {
      columns_ = start_columns(ready_);
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, columns_->advance());
    if (progress != Progress::kDone) {
      return progress == Progress::kMoved;
    }
    columns_.reset();
    if (const ElementRange own = piece(ready_, me()); bucket_.contiguous_out(own) == nullptr) {
      bucket_.unpack(own, 0, {result_area(ready_), own.count * bucket_.element_bytes()});
    }
    ++ready_;
    return true;
  }
  std::unique_ptr<Work> start_columns(std::size_t chunk) {
    const ElementRange own = piece(chunk, me());
    std::byte* const out = bucket_.contiguous_out(own);
    std::byte* const sums = out != nullptr ? out : result_area(chunk);
    Group& first = *levels_->levels.inter.front();
    return levels_->on_columns(first, [&](std::size_t index, Group& column) {
      const ElementRange share = plan_.piece(chunk, first_share(me()) + index);
      std::byte* const sum = sums + (share.first - own.first) * bucket_.element_bytes();
      return column.allreduce({{.in = sum, .out = sum, .count = share.count}}, column_reduction_);
    });
  }
  Result<bool> post_send(Peer& peer) {
    const Item item = schedule_.step(peer.sends.posted());
    const bool share = is_share(item);
    if (share && item.chunk >= lead_ &&
        peer.sends.done() <= schedule_.scatter_at(item.chunk - lead_)) {
      return false;
    }
    if (!share && ready_ <= item.chunk) {
      return false;
    }
    const ElementRange range = piece(item.chunk, share ? peer.member : me());
    if (range.count == 0) {
      peer.sends.skip();
      return true;
    }
    const std::byte* from = share ? bucket_.contiguous_in(range) : bucket_.contiguous_out(range);
    if (from == nullptr && share) {
      std::byte* const area = pack_area(item.chunk, peer.index);
      bucket_.pack(range, area);
      from = area;
    } else if (from == nullptr) {
      from = result_area(item.chunk);
    }
    const auto request = peer.sends.channel().isend({from, range.count * bucket_.element_bytes()});
    if (!request.ok()) {
      return request.status();
    }
    peer.sends.note(request.value());
    return true;
  }
  Result<bool> post_recv(Peer& peer) {
    const Item item = schedule_.step(peer.recvs.posted());
    const bool share = is_share(item);
    if (share && (item.chunk >= reduced_ + lead_ || (streaming_ && !results_left(item.chunk)))) {
      return false;
    }
    if (!share && peer.sends.done() <= schedule_.scatter_at(item.chunk)) {
      return false;
    }
    const ElementRange range = piece(item.chunk, share ? me() : peer.member);
    if (range.count == 0) {
      peer.recvs.skip();
      return true;
    }
    const std::size_t bytes = range.count * bucket_.element_bytes();
    std::byte* into = nullptr;
    if (share) {
      into = streaming_ ? nullptr : stage(item.chunk, peer.index);
    } else {
      into = bucket_.contiguous_out(range);
    }
    Taking& taking = peer.takings[peer.recvs.posted() % peer.takings.size()];
    taking = {.exchange = this, .member = peer.member, .item = item};
    LIGHTCC_ASSIGN_OR_RETURN(
        const RequestId request,
        receive_message(
            peer.recvs.channel(), into, bytes, {.take = take_shown, .context = &taking}));
    peer.recvs.note(request);
    return true;
  }
  Result<bool> take_arrived(Peer& peer) {
    if (peer.recvs.idle() || peer.recvs.oldest() == RecvQueue::kSkipped) {
      return false;
    }
    const Item item = schedule_.step(peer.recvs.done());
    const bool share = is_share(item);
    if (share ? !streaming_ : bucket_.contiguous_out(piece(item.chunk, peer.member)) != nullptr) {
      return false;
    }
    return take_fragments(peer.recvs, [&](const Fragment& fragment) {
      return take_fragment(peer.member, item, fragment);
    });
  }
  Status take_fragment(int member, const Item& item, const Fragment& fragment) {
    const bool share = is_share(item);
    const ElementRange range = piece(item.chunk, share ? me() : member);
    const std::size_t element = bucket_.element_bytes();
    LIGHTCC_RETURN_IF_ERROR(check_fragment(fragment, range.count * element, element));
    if (share) {
      reduce_part(item.chunk,
                  fragment.offset / element,
                  fragment.bytes.size() / element,
                  fragment.bytes.data());
    } else {
      bucket_.unpack(range, fragment.offset, fragment.bytes);
    }
    return {};
  }
  // Any thread: it reads what is settled once the receive is posted, and writes where nobody else
  // does until it is done. A message of another size than was expected fails when it is done.
  static void take_shown(void* context, const Fragment& fragment) {
    const auto& taking = *static_cast<const Taking*>(context);
    (void)taking.exchange->take_fragment(taking.member, taking.item, fragment);
  }
  /// Combines `count` elements from element `first` of the own piece of `chunk` on. `streamed`, if
  /// not null, is where the one peer's contribution to just these lies; else it is in the staging.
  void reduce_part(std::size_t chunk,
                   std::size_t first,
                   std::size_t count,
                   const std::byte* streamed) {
    const ElementRange own = piece(chunk, me());
    const std::size_t element = bucket_.element_bytes();
    const bool in_results = gather_ && bucket_.contiguous_out(own) == nullptr;
    std::array<ReduceSource, kMaxRowWidth> sources{};
    const auto size = static_cast<std::size_t>(links().size());
    const ElementRange part{.first = own.first + first, .count = count};
    bucket_.for_each_piece(part, [&](const TensorSpan& span, std::size_t offset) {
      sources[static_cast<std::size_t>(me())].data = span.in;
      for (const Peer& peer : peers_) {
        sources[static_cast<std::size_t>(peer.member)].data =
            streamed != nullptr ? streamed + offset * element
                                : stage(chunk, peer.index) + (first + offset) * element;
      }
      std::byte* const result =
          in_results ? result_area(chunk) + (first + offset) * element : nullptr;
      const bool to_result = span.out == nullptr || (in_results && levels_ != nullptr);
      std::byte* const out = to_result ? result : span.out;
      if (out != nullptr) {
        reduce_in_levels(std::span(sources).first(size),
                         links().order(),
                         out,
                         out == result ? nullptr : result,
                         span.count,
                         reduction_,
                         links().options().simd);
      }
    });
  }
  /// Whether the results of the chunk that had the place of `chunk` before are off our hands.
  bool results_left(std::size_t chunk) const {
    if (!gather_ || chunk < lead_) {
      return true;
    }
    const std::size_t position = schedule_.gather_at(chunk - lead_);
    return std::ranges::all_of(peers_,
                               [&](const Peer& peer) { return peer.sends.done() > position; });
  }

  /// The share with which those of `member` begin: on one level, its own.
  std::size_t first_share(int member) const {
    const auto index = static_cast<std::size_t>(member);
    return levels_ == nullptr ? index : levels_->shape.first_share(levels_->block(), index);
  }
  ElementRange piece(std::size_t chunk, int member) const {
    ElementRange range = plan_.piece(chunk, first_share(member));
    for (std::size_t share = first_share(member) + 1; share < first_share(member + 1); ++share) {
      range.count += plan_.piece(chunk, share).count;
    }
    return range;
  }
  int me() const { return links().rank(); }
  std::byte* stage(std::size_t chunk, std::size_t index) const {
    return stage_ + (index * lead_ + chunk % lead_) * slot_bytes_;
  }
  std::byte* pack_area(std::size_t chunk, std::size_t index) const {
    return pack_ + (index * lead_ + chunk % lead_) * slot_bytes_;
  }
  std::byte* result_area(std::size_t chunk) const {
    return results_ == nullptr ? nullptr : results_ + (chunk % lead_) * slot_bytes_;
  }

  std::shared_ptr<GridState> levels_;  ///< Null: the row is all there is.
  BucketView bucket_;
  SharePlan plan_;
  Reduction reduction_;
  Reduction column_reduction_;
  bool gather_;
  bool streaming_ = false;         ///< Two members: reduce out of the transport's fragments.
  std::size_t lead_ = 0;           ///< min(kExchangeDepth, chunks).
  ChunkSchedule schedule_{0, 1};   ///< Orders positions; without `gather`, shares alone.
  std::size_t reduced_ = 0;        ///< Chunks whose own piece is combined.
  std::size_t ready_ = 0;          ///< Chunks whose result is there.
  std::unique_ptr<Work> columns_;  ///< Works on chunk ready_.
  std::size_t slot_bytes_ = 0;     ///< Most bytes of a member's piece.
  std::vector<Peer> peers_;
  std::byte* stage_ = nullptr;
  std::byte* pack_ = nullptr;
  std::byte* results_ = nullptr;
};

}  // namespace

std::size_t exchange_piece_bytes(std::size_t bytes, std::size_t members, std::size_t chunk_bytes) {
  std::size_t maximum = chunk_bytes;
  if (members > 2) {
    maximum = std::min(maximum, kStagingBytes / (kExchangeDepth * (members - 1)));
  }
  const std::size_t overlapping = std::max(kMinExchangeBytes, bytes / (members * kExchangeDepth));
  return std::max<std::size_t>(64, std::min(maximum, overlapping));
}

std::unique_ptr<Work> make_net_exchange(std::shared_ptr<NetLinks> links,
                                        BucketView bucket,
                                        SharePlan plan,
                                        const Reduction& reduction,
                                        bool gather) {
  return std::make_unique<NetExchange>(
      std::move(links), std::move(bucket), std::move(plan), reduction, gather);
}

std::unique_ptr<Work> make_net_exchange(std::shared_ptr<NetLinks> links,
                                        std::shared_ptr<GridState> levels,
                                        BucketView bucket,
                                        const Reduction& reduction) {
  const std::size_t element = bucket.element_bytes();
  const std::size_t total = bucket.total_elements();
  const std::size_t width = levels->shape.width;
  const std::size_t chunk_bytes = links->options().chunk_bytes;
  const std::size_t piece = std::max(exchange_piece_bytes(total * element, width, chunk_bytes),
                                     std::min(chunk_bytes, kMinLevelBytes));
  auto plan = SharePlan::even(total, element, width, piece);
  return std::make_unique<NetExchange>(
      std::move(links), std::move(bucket), std::move(plan), reduction, true, std::move(levels));
}

}  // namespace lightcc
