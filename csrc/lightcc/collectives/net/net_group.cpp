// The Group over a Transport: picks an algorithm by members and bytes.
//
// Idea. Every operation is a state machine (NetWork) over one-way channels to the other members,
// one in each direction per pair, opened when first used. No message carries a tag: both ends of a
// channel derive the same sequence of messages from the arguments, which the Group contract makes
// the same on all members, so `chunk_bytes` must be the same too.
//
//   operation        members <= 16                     more
//   allreduce        flood (tiny) or direct exchange   ring
//   reduce_scatter   direct exchange                   ring
//   allgather        everyone to everyone              ring, streamed
//   broadcast        binomial tree or chain, by size   the same
//   alltoall         pairs, four steps at once         the same
//   barrier          dissemination                     the same
//
// Each algorithm's file states its steps and bytes; docs/inside/algorithms.md collects them.
//
// Invariants. Up to 16 members, one owner combines each element in member order, so bits do not
// depend on sizes, chunks or algorithm. Whatever a Work holds of the caller's memory is given back
// when it is destroyed: a Work that did not finish cancels the channels, and with them the group.
//
// Not handled. Silence of a peer (the transport's timeout turns it into an error), waiting (whoever
// advances the Works polls the transport), and which rank failed first (the engine's business).
#include "lightcc/collectives/net/net_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/checked_group.hpp"
#include "lightcc/collectives/group.hpp"
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
    if (is_direct() &&
        is_flood_sized(bucket.total_elements() * bucket.element_bytes(), members())) {
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
    return reduce(BucketView(tensors, element_size(reduction.dtype)), &counts, reduction);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    const std::size_t element = element_size(dtype);
    const auto own = counts.begin() + rank();
    const ElementRange own_part{std::accumulate(counts.begin(), own, std::size_t{0}), *own};
    for (std::size_t& count : counts) {
      count *= element;
    }
    return make_net_gather_bucket(
        BucketView(tensors, element), own_part, [&](const std::byte* in, std::byte* out) {
          return allgather(in, out, std::move(counts));
        });
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    if (is_direct()) {
      return make_net_gather_direct(links_, in, out, std::move(bytes));
    }
    return make_net_gather_ring(links_, in, out, std::move(bytes));
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
  /// With `counts`, each member gets its part alone.
  std::unique_ptr<Work> reduce(BucketView bucket,
                               const std::vector<std::size_t>* counts,
                               const Reduction& reduction) const {
    const std::size_t element = bucket.element_bytes();
    const std::size_t total = bucket.total_elements();
    const auto piece_bytes = is_direct() ? exchange_piece_bytes : ring_piece_bytes;
    const std::size_t piece =
        piece_bytes(total * element, members(), links_->options().chunk_bytes);
    auto plan = counts == nullptr ? SharePlan::even(total, element, members(), piece)
                                  : SharePlan::by_counts(*counts, element, piece);
    const auto make = is_direct() ? make_net_exchange : make_net_ring;
    return make(links_, std::move(bucket), std::move(plan), reduction, counts == nullptr);
  }
  bool is_direct() const { return links_->size() <= kMaxDirectMembers; }

  std::shared_ptr<NetLinks> links_;
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
  return make_checked_group(std::make_unique<NetGroup>(
      std::make_shared<NetLinks>(transport, std::move(members), rank, process_set, lane, rounded)));
}

}  // namespace lightcc
