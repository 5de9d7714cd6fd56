#include "lightcc/collectives/grid_work.hpp"

#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid_plan.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net_bucket.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

GridPlan plan_of(const GridState& state, const BucketView& bucket) {
  const std::size_t bytes = bucket.total_elements() * bucket.element_bytes();
  const std::size_t chunk = state.options.chunk_bytes;
  // While every inter group works on a chunk, one more is ready to follow.
  return {bucket.total_elements(),
          bucket.element_bytes(),
          static_cast<std::size_t>(state.levels.intra->size()),
          chunk != 0 ? chunk : grid_chunk_bytes(bytes),
          state.levels.inter.size() + 1};
}

// A block's sum of float16 could overflow where the average of all does not.
bool scales_early(const Reduction& reduction) {
  return reduction.dtype == DataType::kFloat16 && reduction.op == ReduceOp::kSum &&
         std::abs(reduction.postscale) < 1.0;
}

}  // namespace

void GridState::fail(const Status& why) {
  if (!status.ok()) {
    return;
  }
  status = why;
  levels.inter.clear();  // Closes the channels, so that the peers hear of it.
  levels.intra.reset();
}

GridWork::GridWork(std::shared_ptr<GridState> state, BucketView bucket, const Reduction& reduction)
    : state_(std::move(state)),
      bucket_(std::move(bucket)),
      reduction_(reduction),
      plan_(plan_of(*state_, bucket_)),
      exchanges_(state_->levels.inter.size()) {
  for (std::size_t index = 0; index < exchanges_.size(); ++index) {
    exchanges_[index].chunk = index;
  }
}

GridWork::~GridWork() {
  drop_works();
  if (!finished_) {
    state_->fail({ErrorCode::kShutDown, "an earlier operation of this group was abandoned"});
  }
}

void GridWork::drop_works() {
  intra_work_.reset();
  for (Exchange& exchange : exchanges_) {
    exchange.work.reset();
  }
}

Result<Progress> GridWork::advance() {
  if (!state_->status.ok()) {
    return state_->status;
  }
  // The network first: what arrived there lets the others of this block go on.
  auto moved = Result<bool>(false);
  for (std::size_t index = 0; index < exchanges_.size() && moved.ok(); ++index) {
    const auto exchanged = advance_exchange(index);
    moved = exchanged.ok() ? Result<bool>(*moved || *exchanged) : exchanged;
  }
  if (moved.ok()) {
    const auto stepped = advance_intra();
    moved = stepped.ok() ? Result<bool>(*moved || *stepped) : stepped;
  }
  if (!moved.ok()) {
    drop_works();
    state_->fail(moved.status());
    return moved.status();
  }
  finished_ = step_ == plan_.steps();
  if (finished_) {
    return Progress::kDone;
  }
  return *moved ? Progress::kMoved : Progress::kIdle;
}

/// At most one step, so that what it makes ready goes to the network at once.
Result<bool> GridWork::advance_intra() {
  if (step_ == plan_.steps()) {
    return false;
  }
  const auto [half, chunk] = plan_.step(step_);
  const bool scatter = half == GridPlan::Half::kScatter;
  if (!scatter && !is_exchanged(chunk)) {
    return false;
  }
  if (intra_work_ == nullptr) {
    intra_work_ = scatter ? start_scatter(chunk) : start_gather(chunk);
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, intra_work_->advance());
  if (progress != Progress::kDone) {
    return progress == Progress::kMoved;
  }
  intra_work_.reset();
  scattered_ += scatter ? 1 : 0;
  ++step_;
  return true;
}

Result<bool> GridWork::advance_exchange(std::size_t index) {
  Exchange& exchange = exchanges_[index];
  if (exchange.chunk >= scattered_) {
    return false;
  }
  if (exchange.work == nullptr) {
    exchange.work = start_exchange(exchange.chunk, *state_->levels.inter[index]);
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, exchange.work->advance());
  if (progress != Progress::kDone) {
    return progress == Progress::kMoved;
  }
  exchange.work.reset();
  exchange.chunk += exchanges_.size();
  return true;
}

std::vector<std::size_t> GridWork::counts_of(std::size_t chunk) const {
  std::vector<std::size_t> counts;
  counts.reserve(members());
  for (std::size_t member = 0; member < members(); ++member) {
    counts.push_back(plan_.shard(chunk, member).count);
  }
  return counts;
}

template <typename Visit>
void GridWork::for_each_own_piece(std::size_t chunk, Visit visit) {
  bucket_.for_each_piece(plan_.shard(chunk, me()),
                         [&](const TensorSpan& piece, std::size_t offset) {
                           if (piece.out != nullptr) {
                             visit(piece, piece.out);
                             return;
                           }
                           // A chunk's place is free again when the chunk that is `lead` after it
                           // is scattered.
                           if (unwanted_.empty()) {
                             unwanted_.resize(plan_.lead() * plan_.shard_bytes());
                           }
                           visit(piece,
                                 unwanted_.data() + chunk % plan_.lead() * plan_.shard_bytes() +
                                     offset * bucket_.element_bytes());
                         });
}

std::unique_ptr<Work> GridWork::start_scatter(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  for (std::size_t member = 0; member < members(); ++member) {
    if (member == me()) {
      for_each_own_piece(chunk, [&](const TensorSpan& piece, std::byte* result) {
        spans.push_back({.in = piece.in, .out = result, .count = piece.count});
      });
    } else {
      bucket_.for_each_piece(plan_.shard(chunk, member), [&](const TensorSpan& piece, std::size_t) {
        spans.push_back({.in = piece.in, .out = nullptr, .count = piece.count});
      });
    }
  }
  Reduction first = reduction_;
  first.postscale = scales_early(reduction_) ? reduction_.postscale : 1.0;
  return state_->levels.intra->reduce_scatter_bucket(std::move(spans), counts_of(chunk), first);
}

std::unique_ptr<Work> GridWork::start_exchange(std::size_t chunk, Group& group) {
  std::vector<TensorSpan> spans;
  for_each_own_piece(chunk, [&](const TensorSpan& piece, std::byte* result) {
    spans.push_back({.in = result, .out = result, .count = piece.count});
  });
  Reduction second = reduction_;
  second.prescale = 1.0;
  second.postscale = scales_early(reduction_) ? 1.0 : reduction_.postscale;
  return group.allreduce(std::move(spans), second);
}

std::unique_ptr<Work> GridWork::start_gather(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  for (std::size_t member = 0; member < members(); ++member) {
    if (member == me()) {
      for_each_own_piece(chunk, [&](const TensorSpan& piece, std::byte* result) {
        spans.push_back({.in = result, .out = piece.out, .count = piece.count});
      });
    } else {
      bucket_.for_each_piece(plan_.shard(chunk, member), [&](const TensorSpan& piece, std::size_t) {
        spans.push_back({.in = nullptr, .out = piece.out, .count = piece.count});
      });
    }
  }
  return state_->levels.intra->allgather_bucket(
      std::move(spans), counts_of(chunk), reduction_.dtype);
}

}  // namespace lightcc
