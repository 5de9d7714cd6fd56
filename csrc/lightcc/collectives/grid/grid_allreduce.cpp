// All-reduce: every block reduce-scatters a chunk, members of the same place all-reduce their
// shards, every block all-gathers them.
//
// Nothing is packed: stage 1 reads the tensors and writes this member's shard into its output,
// stage 2 works on it there, stage 3 fills the rest in. In place is safe, because a member's stage
// 1 has read all of its chunk before it is done, and only then anything of that chunk is written
// that it does not own. An output that is not wanted (null) has a place here for the own shards,
// of the same kind of memory.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_plan.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

SharePlan plan_of(const GridState& state, const BucketView& bucket) {
  const std::size_t bytes = bucket.total_elements() * bucket.element_bytes();
  return grid_plan(
      bucket.total_elements(), bucket.element_bytes(), state.members(), state.chunk_bytes(bytes));
}

class AllreduceStages final : public GridStages {
 public:
  AllreduceStages(const GridState& state,
                  BucketView bucket,
                  const SharePlan& plan,
                  const Reduction& reduction)
      : GridStages(state, ChunkSchedule(plan.chunks(), state.lead())),
        bucket_(std::move(bucket)),
        plan_(plan),
        reduction_(reduction) {}

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override {
    if (!has_room_for(chunk)) {
      return std::make_unique<FailedWork>(
          make_error(ErrorCode::kSystem,
                     "an all-reduce needs %zu bytes on a rank that has no result, and there is no "
                     "such memory",
                     schedule().lead() * plan_.piece_bytes()));
    }
    return intra().reduce_scatter_bucket(spans_of(chunk, ChunkSchedule::Half::kScatter),
                                         counts_of(chunk),
                                         within_blocks(reduction_));
  }
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override {
    std::vector<TensorSpan> spans;
    for_each_own_piece(chunk, [&](const TensorSpan& piece, std::byte* result) {
      spans.push_back({.in = result, .out = result, .count = piece.count});
    });
    return group.allreduce(std::move(spans), between_blocks(reduction_));
  }
  std::unique_ptr<Work> start_gather(std::size_t chunk) override {
    return intra().allgather_bucket(
        spans_of(chunk, ChunkSchedule::Half::kGather), counts_of(chunk), reduction_.dtype);
  }

 private:
  /// Calls visit(piece, result) for what lies together of the own shard of `chunk`; `result` is
  /// where its result goes on its way, never null.
  template <typename Visit>
  void for_each_own_piece(std::size_t chunk, Visit visit);
  std::vector<TensorSpan> spans_of(std::size_t chunk, ChunkSchedule::Half half);
  std::vector<std::size_t> counts_of(std::size_t chunk) const;
  /// Whether all of the own shard of `chunk` has a place, which is made where it has none.
  bool has_room_for(std::size_t chunk);

  BucketView bucket_;
  SharePlan plan_;
  Reduction reduction_;
  /// Shards whose result nobody wants on this member but which it owns all the same, by turns.
  std::shared_ptr<std::byte> unwanted_;
};

std::vector<std::size_t> AllreduceStages::counts_of(std::size_t chunk) const {
  std::vector<std::size_t> counts;
  counts.reserve(state().members());
  for (std::size_t member = 0; member < state().members(); ++member) {
    counts.push_back(plan_.piece(chunk, member).count);
  }
  return counts;
}

bool AllreduceStages::has_room_for(std::size_t chunk) {
  bool wants = false;
  bucket_.for_each_piece(
      plan_.piece(chunk, state().me()),
      [&](const TensorSpan& piece, std::size_t) { wants = wants || piece.out == nullptr; });
  if (wants && unwanted_ == nullptr) {
    const std::size_t bytes = schedule().lead() * plan_.piece_bytes();
    if (state().options.allocate) {
      unwanted_ = state().options.allocate(bytes);
    } else {
      const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
      unwanted_ = {memory, memory->data()};
    }
  }
  return !wants || unwanted_ != nullptr;
}

template <typename Visit>
void AllreduceStages::for_each_own_piece(std::size_t chunk, Visit visit) {
  const std::size_t lead = schedule().lead();
  bucket_.for_each_piece(plan_.piece(chunk, state().me()),
                         [&](const TensorSpan& piece, std::size_t offset) {
                           if (piece.out != nullptr) {
                             visit(piece, piece.out);
                             return;
                           }
                           // A chunk's place is free again when the chunk that is `lead` after it
                           // is scattered.
                           visit(piece,
                                 unwanted_.get() + chunk % lead * plan_.piece_bytes() +
                                     offset * bucket_.element_bytes());
                         });
}

/// All shards of `chunk`: the own one from the input to its result, or from there to the output.
std::vector<TensorSpan> AllreduceStages::spans_of(std::size_t chunk, ChunkSchedule::Half half) {
  const bool scatter = half == ChunkSchedule::Half::kScatter;
  std::vector<TensorSpan> spans;
  for (std::size_t member = 0; member < state().members(); ++member) {
    if (member == state().me()) {
      for_each_own_piece(chunk, [&](const TensorSpan& piece, std::byte* result) {
        spans.push_back({.in = scatter ? piece.in : result,
                         .out = scatter ? result : piece.out,
                         .count = piece.count});
      });
      continue;
    }
    bucket_.for_each_piece(plan_.piece(chunk, member), [&](const TensorSpan& piece, std::size_t) {
      spans.push_back({.in = scatter ? piece.in : nullptr,
                       .out = scatter ? nullptr : piece.out,
                       .count = piece.count});
    });
  }
  return spans;
}

/// Both levels all-reduce all of a small bucket, which needs no third stage.
class FloodStages final : public GridStages {
 public:
  FloodStages(const GridState& state, BucketView bucket, const Reduction& reduction)
      : GridStages(state, ChunkSchedule(1, 1)),
        bucket_(std::move(bucket)),
        reduction_(reduction),
        block_sum_(bucket_.total_elements() * bucket_.element_bytes()) {}

  std::unique_ptr<Work> start_scatter(std::size_t) override {
    return intra().allreduce(spans([](TensorSpan& span, std::byte* sum) { span.out = sum; }),
                             within_blocks(reduction_));
  }
  std::unique_ptr<Work> start_exchange(std::size_t, Group& group) override {
    return state().on_columns(group, [&](std::size_t index, Group& column) {
      auto from_sum = spans([index](TensorSpan& span, std::byte* sum) {
        span.in = sum;
        span.out = index == 0 ? span.out : nullptr;
      });
      return column.allreduce(std::move(from_sum), between_blocks(reduction_));
    });
  }
  std::unique_ptr<Work> start_gather(std::size_t) override { return nullptr; }

 private:
  /// The bucket's pieces, each changed by `change`, which is told its place in the block's sum.
  template <typename Change>
  std::vector<TensorSpan> spans(Change change) {
    std::vector<TensorSpan> spans;
    bucket_.for_each_piece(
        {0, bucket_.total_elements()}, [&](const TensorSpan& piece, std::size_t offset) {
          spans.push_back(piece);
          change(spans.back(), block_sum_.data() + offset * bucket_.element_bytes());
        });
    return spans;
  }

  BucketView bucket_;
  Reduction reduction_;
  std::vector<std::byte> block_sum_;
};

}  // namespace

std::unique_ptr<GridStages> make_allreduce_stages(const GridState& state,
                                                  BucketView bucket,
                                                  const Reduction& reduction) {
  if (bucket.total_elements() * bucket.element_bytes() <= state.options.flood_bytes) {
    return std::make_unique<FloodStages>(state, std::move(bucket), reduction);
  }
  const SharePlan plan = plan_of(state, bucket);
  return std::make_unique<AllreduceStages>(state, std::move(bucket), plan, reduction);
}

}  // namespace lightcc
