// The Group over a Transport: picks an algorithm by members and bytes.
//
// Idea. Every operation is a state machine (NetWork) over one-way channels to the other members,
// one in each direction per pair, opened when first used. No message carries a tag: both ends of a
// channel derive the same sequence of messages from the arguments, which the Group contract makes
// the same on all members, so `chunk_bytes` must be the same too.
//
//   operation        a row (at most 16 members)            more: levels of rows (grid_shape)
//   allreduce        flood (tiny) or direct exchange       on every level
//   reduce_scatter   direct exchange                       on every level
//   allgather        everyone to everyone                  on every level
//   broadcast        binomial tree or chain, by size       the same up to 64 members; above, large
//                                                          ones on every level
//   alltoall         pairs, four steps at once             the same
//   barrier          dissemination                         the same
//
// Each algorithm's file states its steps and bytes; docs/inside/algorithms.md collects them. Levels
// are those of a GridGroup, whose rows and columns are groups of this kind again.
//
// Small operations and large ones have levels of their own, over the same channels (grid_shape).
//
// Invariants. One owner combines each element of a row in the order of its members or of the narrow
// levels that it stands for, and grid_shape says in which order rows follow, so bits do not depend
// on sizes, chunks or algorithm. Whatever a Work holds of the caller's memory is given back when it
// is destroyed: a Work that did not finish cancels the channels, and with them all levels.
//
// Not handled. Silence of a peer (the transport's timeout turns it into an error), waiting (whoever
// advances the Works polls the transport), and which rank failed first (the engine's business).
#include "lightcc/collectives/net/net_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/checked_group.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_channels.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

class NetGroup final : public Group {
 public:
  explicit NetGroup(std::shared_ptr<NetLinks> links) : links_(std::move(links)) {}

  int rank() const override { return links_->rank(); }
  int size() const override { return links_->size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    BucketView bucket(tensors, element_size(reduction.dtype));
    if (bucket.total_elements() * bucket.element_bytes() <= flood_bytes(members())) {
      return make_net_flood(links_, std::move(bucket), reduction);
    }
    return reduce(std::move(bucket), nullptr, reduction);
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    auto blocks = blocks_of(in, out, counts, rank(), element_size(reduction.dtype));
    return reduce_scatter_bucket(std::move(blocks), std::move(counts), reduction);
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    std::size_t largest = 0;
    for (const TensorSpan& tensor : tensors) {
      largest = std::max(largest, tensor.count * element_size(reduction.dtype));
    }
    return reduce(BucketView(tensors, element_size(reduction.dtype)), &counts, reduction, largest);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    count_bytes(tensors, counts, element_size(dtype));
    return make_net_gather(links_, tensors, std::move(counts));
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    const auto blocks = gathered_blocks(in, out, bytes, rank());
    return make_net_gather(links_, blocks, std::move(bytes));
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    return make_net_broadcast(links_, data, bytes, root);
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    return make_net_alltoall(links_, in, std::move(send_bytes), out, std::move(recv_bytes));
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return make_net_send(links_, in, bytes, peer);
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return make_net_recv(links_, out, bytes, peer);
  }
  std::unique_ptr<Work> barrier() override { return make_net_barrier(links_); }

 private:
  std::size_t members() const { return static_cast<std::size_t>(links_->size()); }
  /// With `counts`, each member gets its part alone. Pieces then end with tensors that are all as
  /// large as the largest one, so that none of these is packed.
  std::unique_ptr<Work> reduce(BucketView bucket,
                               const std::vector<std::size_t>* counts,
                               const Reduction& reduction,
                               std::size_t largest_bytes = 0) const {
    const std::size_t element = bucket.element_bytes();
    const std::size_t total = bucket.total_elements();
    std::size_t piece =
        exchange_piece_bytes(total * element, members(), links_->options().chunk_bytes);
    if (largest_bytes >= min_scattered_bytes(links_->options().chunk_bytes)) {
      piece = largest_bytes / ((largest_bytes + piece - 1) / piece);
    }
    auto plan = counts == nullptr ? SharePlan::even(total, element, members(), piece)
                                  : SharePlan::by_counts(*counts, element, piece);
    return make_net_exchange(
        links_, std::move(bucket), std::move(plan), reduction, counts == nullptr);
  }

  std::shared_ptr<NetLinks> links_;
};

/// A chain of more members takes longer to fill than it saves: each passes the data on once, where
/// levels send it nearly twice.
constexpr std::size_t kMaxChainMembers = 64;

/// The group of `members`, of which `members[rank]` is this one: a row, or levels of rows. Levels
/// that together have up to `max_width` members are one.
std::unique_ptr<Group> make_levels(const std::shared_ptr<NetChannels>& channels,
                                   const std::vector<std::size_t>& members,
                                   std::size_t rank,
                                   std::size_t max_width) {
  const auto among = [&](std::vector<std::size_t> numbers) {
    std::ranges::transform(numbers, numbers.begin(), [&](std::size_t i) { return members[i]; });
    return numbers;
  };
  const MembersBySwitch switches = by_switch(channels->switches_of(members));
  const GridRow lowest = grid_row(max_members(switches), max_width);
  const auto links_of = [&](std::vector<std::size_t> of, std::size_t own) {
    return std::make_shared<NetLinks>(channels, std::move(of), static_cast<int>(own), lowest.order);
  };
  const GridShape shape = rows_of(switches, lowest.width);
  if (shape.rows.size() == 1) {
    return make_checked_group(std::make_unique<NetGroup>(links_of(members, rank)));
  }
  const auto [row, own] = shape.position_of(rank);
  const auto row_links = links_of(among(shape.rows[row]), own);
  GridLevels levels{.intra = std::make_unique<NetGroup>(row_links), .inter = {}, .shape = shape};
  std::set<std::size_t> met;
  for (std::size_t index = 0; index < shape.shares_of(row, own); ++index) {
    auto column = among(shape.column(shape.first_share(row, own) + index));
    for (std::size_t& member : column) {
      if (member != members[rank] && !met.insert(member).second) {
        member = channels->again(member);
      }
    }
    auto& groups = index == 0 ? levels.inter : levels.other_columns;
    groups.push_back(make_levels(channels, column, row, max_width));
  }
  auto grid = make_grid_state(
      std::move(levels),
      {.chunk_bytes = channels->options().level_chunk_bytes,
       .max_bytes = std::numeric_limits<std::size_t>::max(),
       .flood_bytes = flood_bytes(shape.width),
       .exchange =
           [row_links](const auto& state, BucketView bucket, const Reduction& reduction) {
             return make_net_exchange(row_links, state, std::move(bucket), reduction);
           },
       .min_scattered_bytes = min_scattered_bytes(channels->options().chunk_bytes),
       .min_gathered_bytes = lone_tensor_bytes(channels->options().chunk_bytes),
       .flat_broadcast_bytes = members.size() <= kMaxChainMembers
                                   ? std::numeric_limits<std::size_t>::max()
                                   : broadcast_tree_bytes(members.size()),
       .on_fail = [channels](const Status& why) { channels->fail(why); }});
  return make_grid_group(std::make_unique<NetGroup>(links_of(members, rank)), std::move(grid));
}

/// Small operations take narrow levels, which have the fewest messages. Large ones take wide
/// levels, whose pieces overlap, and so do those that no level helps. The bits are the same.
class NetGroupBySize final : public Group {
 public:
  NetGroupBySize(std::unique_ptr<Group> narrow,
                 std::unique_ptr<Group> wide,
                 std::size_t narrow_bytes)
      : narrow_(std::move(narrow)), wide_(std::move(wide)), narrow_bytes_(narrow_bytes) {}

  int rank() const override { return wide_->rank(); }
  int size() const override { return wide_->size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    std::size_t count = 0;
    for (const TensorSpan& tensor : tensors) {
      count += tensor.count;
    }
    return of(count * element_size(reduction.dtype)).allreduce(std::move(tensors), reduction);
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    return of(counts, reduction.dtype).reduce_scatter(in, out, std::move(counts), reduction);
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    Group& group = of(counts, reduction.dtype);
    return group.reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    Group& group = of(counts, dtype);
    return group.allgather_bucket(std::move(tensors), std::move(counts), dtype);
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    return of(bytes, DataType::kUint8).allgather(in, out, std::move(bytes));
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    return wide_->broadcast(data, bytes, root);
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    return wide_->alltoall(in, std::move(send_bytes), out, std::move(recv_bytes));
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return wide_->send(in, bytes, peer);
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return wide_->recv(out, bytes, peer);
  }
  std::unique_ptr<Work> barrier() override { return wide_->barrier(); }

 private:
  Group& of(std::size_t bytes) { return bytes <= narrow_bytes_ ? *narrow_ : *wide_; }
  Group& of(const std::vector<std::size_t>& counts, DataType dtype) {
    return of(std::reduce(counts.begin(), counts.end()) * element_size(dtype));
  }

  std::unique_ptr<Group> narrow_;
  std::unique_ptr<Group> wide_;
  std::size_t narrow_bytes_;
};

}  // namespace

std::unique_ptr<Group> make_net_group(Transport& transport,
                                      std::vector<NetMember> members,
                                      int rank,
                                      std::uint32_t process_set,
                                      std::uint32_t lane,
                                      const NetGroupOptions& options) {
  // Fragments and cuts are multiples of 64 bytes.
  NetGroupOptions rounded = options;
  rounded.chunk_bytes = std::max<std::size_t>(1, options.chunk_bytes / 64) * 64;
  std::vector<std::size_t> all(members.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto own = static_cast<std::size_t>(rank);
  const auto channels =
      std::make_shared<NetChannels>(transport, std::move(members), own, process_set, lane, rounded);
  auto wide = make_levels(channels, all, own, kWideRow);
  if (std::ranges::all_of(grid_tiers(channels->switches_of(all)), [](const GridTier& tier) {
        return tier.widths == grid_widths(max_members(tier.switches), kWideRow);
      })) {
    return wide;
  }
  return std::make_unique<NetGroupBySize>(
      make_levels(channels, all, own, 1), std::move(wide), options.narrow_bytes);
}

}  // namespace lightcc
