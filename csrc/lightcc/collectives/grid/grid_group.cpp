// Collectives over a grid, in three stages that overlap.
//
// The members are m blocks of n: a block shares memory, and members that have the same place in
// their blocks reach each other through the transport. The data (N bytes) is cut into chunks, each
// of which passes through
//
//   stage                  1 within every block  2 between blocks, all n   3 within every block
//                                                places at once
//   allreduce              reduce-scatter        all-reduce of shards      all-gather
//   reduce_scatter         reduce-scatter        reduce-scatter            -
//   allgather              -                     all-gather of own parts   all-gather
//   broadcast              the root's: broadcast broadcast of shards       the others': all-gather
//
// so that every byte crosses to a host once, and each of its n members carries its part:
//
//   sent by a member through the transport: allreduce 2 (m-1)/m N/n; reduce_scatter (m-1)/m N/n;
//   allgather (m-1) of its own part; broadcast, in the root's block, N/n for each child block. A
//   flat group sends n times as much between hosts (a broadcast: depends on the order of ranks).
//   time                   that of the slowest stage, plus one chunk through the other two
//
// Blocks need neither share memory nor be alike. Members that all reach each other through the
// transport form rows of neighbours, the last one perhaps shorter, and each column of rows is such
// a group again (grid_shape, net_group): these are grids of any number of levels.
//
// Files. grid_shape: who owns what. grid_plan: the cutting, and the order of a block's operations.
// grid_stages: what each operation does in each stage (grid_allreduce, grid_reduce_scatter,
// grid_gather, grid_broadcast). grid_work: the pipeline that runs them. grid_state: what they
// share.
//
// Pipeline. While some chunks are in stage 2, later ones are in stage 1 and earlier ones in stage
// 3. A block runs one operation at a time, in a fixed order that all its members share; stage 2 has
// groups of its own, which chunks take in turn.
//
// Progress. Stage 2 of chunk i waits for stage 1 of chunk i on both ends and for stage 2 of
// smaller chunks; stage 3 of chunk i for stage 2 of chunk i on all members of the block; stage 1
// of chunk i (by the block's order) for stage 3 of smaller chunks only. So the member that is at
// the smallest chunk of all can always go on.
//
// Numbers. Each level combines in the order of its members, float16 and bfloat16 in float32, and
// rounds once: ((x0 + x1) + (x2 + x3)), the blocks in parentheses. The prescale is applied in stage
// 1, the postscale in stage 2, each once; but a sum of float16 takes a postscale below 1, such as
// an average's, in stage 1, because a block's sum could overflow. Every element has one owner in
// each block, and these owners have the same bits from stage 2; so all replicas are identical, and
// the bits depend on the grid and the inputs, not on bucket, chunk or SIMD level, and are the same
// in an allreduce and a reduce_scatter. They differ from those of a flat group where rounding does.
//
// Not handled. The death of a member of the block (Works stay kIdle; liveness is the engine's).
#include "lightcc/collectives/grid/grid_group.hpp"

#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/checked_group.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/grid/grid_work.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

class GridGroup final : public Group {
 public:
  GridGroup(std::unique_ptr<Group> flat, std::shared_ptr<GridState> state)
      : flat_(std::move(flat)), state_(std::move(state)) {}

  int rank() const override { return flat_->rank(); }
  int size() const override { return flat_->size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    std::vector<std::size_t> counts;
    counts.reserve(tensors.size());
    for (const TensorSpan& tensor : tensors) {
      counts.push_back(tensor.count);
    }
    if (!fit(counts, element_size(reduction.dtype))) {
      return flat_->allreduce(std::move(tensors), reduction);
    }
    const std::size_t element = element_size(reduction.dtype);
    const GridGroupOptions& options = state_->options;
    if (options.exchange && state_->status.ok() &&
        std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * element >
            options.flood_bytes) {
      return options.exchange(state_, BucketView(tensors, element), reduction);
    }
    // Groups are given the same pieces on all members.
    BucketView bucket(tensors, element, BucketView::Joining::kNothing);
    return on_levels([&] { return make_allreduce_stages(*state_, std::move(bucket), reduction); });
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    if (!is_host_memory() || !fit(counts, element_size(reduction.dtype))) {
      return flat_->reduce_scatter(in, out, std::move(counts), reduction);
    }
    auto blocks = blocks_of(in, out, counts, rank(), element_size(reduction.dtype));
    return reduce_scatter_bucket(std::move(blocks), std::move(counts), reduction);
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    if (!is_host_memory() || !fit(counts, element_size(reduction.dtype))) {
      return flat_->reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
    }
    return on_levels(
        [&] { return make_reduce_scatter_stages(*state_, tensors, counts, reduction); });
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    if (!is_host_memory() || !fit(counts, element_size(dtype))) {
      return flat_->allgather_bucket(std::move(tensors), std::move(counts), dtype);
    }
    count_bytes(tensors, counts, element_size(dtype));
    return on_levels([&] { return make_allgather_stages(*state_, tensors, counts); });
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    if (!is_host_memory() || !fit(bytes, 1)) {
      return flat_->allgather(in, out, std::move(bytes));
    }
    auto blocks = gathered_blocks(in, out, bytes, rank());
    return allgather_bucket(std::move(blocks), std::move(bytes), DataType::kUint8);
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    if (!is_host_memory() || !fit({&bytes, 1}, 1) ||
        bytes <= state_->options.flat_broadcast_bytes) {
      return flat_->broadcast(data, bytes, root);
    }
    return on_levels([&] {
      return make_broadcast_stages(*state_, data, bytes, static_cast<std::size_t>(root));
    });
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    return flat_->alltoall(in, std::move(send_bytes), out, std::move(recv_bytes));
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return flat_->send(in, bytes, peer);
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return flat_->recv(out, bytes, peer);
  }
  std::unique_ptr<Work> barrier() override { return flat_->barrier(); }
  Group& group_for(std::size_t bytes) override {
    return bytes > state_->options.max_bytes ? *flat_ : *this;
  }

 private:
  bool is_host_memory() const { return state_->options.is_host_memory; }
  /// Whether the levels take operations of such a size; the flat group runs larger ones.
  bool fit(std::span<const std::size_t> counts, std::size_t element_bytes) const {
    std::size_t room = state_->options.max_bytes / element_bytes;
    for (const std::size_t count : counts) {
      if (count > room) {
        return false;
      }
      room -= count;
    }
    return true;
  }
  template <typename MakeStages>
  std::unique_ptr<Work> on_levels(MakeStages make_stages) {
    if (!state_->status.ok()) {
      return std::make_unique<FailedWork>(state_->status);
    }
    return std::make_unique<GridWork>(state_, make_stages());
  }

  std::unique_ptr<Group> flat_;
  std::shared_ptr<GridState> state_;
};

}  // namespace

std::shared_ptr<GridState> make_grid_state(GridLevels levels, GridGroupOptions options) {
  auto state = std::make_shared<GridState>();
  const auto width = static_cast<std::size_t>(levels.intra->size());
  const auto blocks = static_cast<std::size_t>(levels.inter.front()->size());
  state->shape = levels.shape.value_or(rows_of(blocks * width, width));
  state->levels = std::move(levels);
  state->options = std::move(options);
  return state;
}

std::unique_ptr<Group> make_grid_group(std::unique_ptr<Group> flat,
                                       std::shared_ptr<GridState> state) {
  return make_checked_group(std::make_unique<GridGroup>(std::move(flat), std::move(state)));
}

}  // namespace lightcc
