// All-reduce over a grid, in three stages that overlap.
//
// The members are m blocks of n: a block shares memory, and members that have the same place in
// their blocks reach each other through the transport. The bucket (N bytes) is cut into chunks, and
// each chunk into n shards, one for each place in a block (grid_plan.hpp). For each chunk
//   1. every block reduce-scatters it: each member has its block's sum of its own shard,
//   2. members of the same place all-reduce their shards, all n places at once,
//   3. every block all-gathers the shards.
//
//   bytes sent by each member   2 (m-1)/m N/n through the transport (a flat all-reduce: about
//                               2 N), so 2 (m-1)/m N for a host with one block, whatever n
//   time                        that of the slowest stage, plus one chunk through the other two
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
// Memory. Nothing is packed: stage 1 reads the tensors and writes this member's shard into its
// output, stage 2 works on it there, stage 3 fills the rest in. In place is safe, because a
// member's stage 1 has read all of its chunk before it is done, and only then anything of that
// chunk is written that it does not own. An output that is not wanted (null) has a place of
// the Work for the own shards instead.
//
// Numbers. Each level combines in the order of its members, float16 and bfloat16 in float32, and
// rounds once: ((x0 + x1) + (x2 + x3)), the blocks in parentheses. The prescale is applied in stage
// 1, the postscale in stage 2, each once; but a sum of float16 takes a postscale below 1, such as
// an average's, in stage 1, because a block's sum could overflow. Every element has one owner in
// each block, and these owners have the same bits from stage 2; so all replicas are identical, and
// the bits depend on the grid and the inputs, not on bucket, chunk or SIMD level (while m and n are
// at most 16). They differ from those of a flat group where rounding does.
//
// Not handled. The death of a member of the block (Works stay kIdle; liveness is the engine's).
#include "lightcc/collectives/grid_group.hpp"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid_work.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net_bucket.hpp"
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
    // What no group can do, the flat one refuses.
    if (!is_reducible(reduction.dtype, reduction.op) || !is_for_the_grid(tensors, reduction)) {
      return flat_->allreduce(std::move(tensors), reduction);
    }
    if (!state_->status.ok()) {
      return std::make_unique<FailedWork>(state_->status);
    }
    return std::make_unique<GridWork>(
        state_, BucketView(tensors, element_size(reduction.dtype)), reduction);
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    return flat_->reduce_scatter(in, out, std::move(counts), reduction);
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    return flat_->allgather(in, out, std::move(bytes));
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    return flat_->broadcast(data, bytes, root);
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

 private:
  bool is_for_the_grid(const std::vector<TensorSpan>& tensors, const Reduction& reduction) const {
    const bool elementwise = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMin ||
                             reduction.op == ReduceOp::kMax || reduction.op == ReduceOp::kProduct;
    std::size_t room = state_->options.most_bytes / element_size(reduction.dtype);
    for (const TensorSpan& tensor : tensors) {
      if (tensor.count > room) {
        return false;
      }
      room -= tensor.count;
    }
    return elementwise;
  }

  std::unique_ptr<Group> flat_;
  std::shared_ptr<GridState> state_;
};

}  // namespace

std::unique_ptr<Group> make_grid_group(std::unique_ptr<Group> flat,
                                       GridLevels levels,
                                       const GridGroupOptions& options) {
  auto state = std::make_shared<GridState>();
  state->levels = std::move(levels);
  state->options = options;
  return std::make_unique<GridGroup>(std::move(flat), std::move(state));
}

}  // namespace lightcc
