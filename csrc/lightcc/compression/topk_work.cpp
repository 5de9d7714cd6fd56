// Top-k on the slow level only.
//
//   stage A  the members of a block reduce-scatter the tensor in memory, dense: a shard for each
//   stage B  each member adds what it kept back of its shard, lists the largest elements and keeps
//            the rest back (topk_state.hpp)
//   stage C  members with the same shard exchange their lists over the network, and merge them in
//            the order of their blocks (topk_exchange.hpp)
//   stage D  the members of a block gather the merged shards, or the lists, in memory
//
// Per tensor, not per bucket. A tensor is cut into shards by itself, and what is kept back, the
// threshold and the number of elements sent belong to its shard. So the bucket it travels in does
// not matter to the result, nor the fusion strategy, nor the lane.
//
// Pipeline. Tensors follow each other through the stages: while lists of one are on the network,
// later ones are reduced and earlier ones gathered. Within a block one operation follows another in
// an order that its members share: with L tensors of lead A0 .. A(L-1) D0 A(L) D1 A(L+1) ... The
// groups between blocks take tensors in turn.
//
// Sizes. A list is as long as it comes out; so before lists travel, 16 bytes say how long they are,
// between blocks and within.
//
// Numbers. Replicas are the same bits: everybody merges the same lists in the same order. A ratio
// of 1 is exchanged dense and gives the bits of the two-level all-reduce. A list with a NaN or an
// infinity makes the tensor NaN on all ranks, and what was kept back stays as it was before: a step
// of mixed precision that overflows costs that step and nothing else.
//
// Memory. The shard of stage A lies in the tensor's own output. Lists are some percent of it.
//
// Not handled: the death of a member of the block (Works stay kIdle; liveness is the engine's).
#include "lightcc/compression/topk_work.hpp"

#include <cstddef>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid_plan.hpp"
#include "lightcc/collectives/grid_state.hpp"  // IWYU pragma: keep: declared in the header

namespace lightcc {
namespace {

class TopkWork final : public Work {
 public:
  TopkWork(TopkLevels levels, std::vector<TopkTensor> tensors, const TopkJob& job)
      : levels_(std::move(levels)), schedule_(tensors.size(), inter_groups() + 1) {
    for (TopkTensor& tensor : tensors) {
      items_.push_back(std::make_unique<TopkItem>(std::move(tensor), job));
    }
    exchanges_.resize(inter_groups());
    for (std::size_t index = 0; index < exchanges_.size(); ++index) {
      exchanges_[index].item = index;
    }
  }
  TopkWork(const TopkWork&) = delete;
  TopkWork& operator=(const TopkWork&) = delete;
  ~TopkWork() override {
    drop_works();
    if (!finished_ && levels_.grid != nullptr) {
      levels_.grid->fail(
          {ErrorCode::kShutDown, "an earlier operation of this group was abandoned"});
    }
  }

  Result<Progress> advance() override;

 private:
  struct Exchange {
    std::size_t item = 0;  // That it works on or waits for.
    std::unique_ptr<Work> work;
  };

  std::size_t inter_groups() const {
    return levels_.grid == nullptr ? 1 : levels_.grid->levels.inter.size();
  }
  Group& inter(std::size_t index) {
    return levels_.grid == nullptr ? *levels_.flat : *levels_.grid->levels.inter[index];
  }
  ShmGroup* intra() { return levels_.grid == nullptr ? nullptr : levels_.grid->levels.intra.get(); }
  bool is_exchanged(std::size_t item) const {
    return exchanges_[item % exchanges_.size()].item > item;
  }
  Result<bool> advance_exchange(std::size_t index);
  Result<bool> advance_intra();
  Result<bool> start_step(const GridSchedule::Step& step);
  void drop_works();

  TopkLevels levels_;
  GridSchedule schedule_;                         // Of tensors instead of chunks.
  std::vector<std::unique_ptr<TopkItem>> items_;  // Null when they are through.
  std::vector<Exchange> exchanges_;
  std::size_t step_ = 0;
  std::size_t compressed_ = 0;  // Items that went through stages A and B.
  std::unique_ptr<Work> intra_work_;
  bool finished_ = false;
};

void TopkWork::drop_works() {
  intra_work_.reset();
  for (Exchange& exchange : exchanges_) {
    exchange.work.reset();
  }
  items_.clear();
}

Result<Progress> TopkWork::advance() {
  if (levels_.grid != nullptr && !levels_.grid->status.ok()) {
    return levels_.grid->status;
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
    finished_ = true;
    if (levels_.grid != nullptr) {
      levels_.grid->fail(moved.status());
    }
    return moved.status();
  }
  finished_ = step_ == schedule_.steps();
  if (finished_) {
    return Progress::kDone;
  }
  return *moved ? Progress::kMoved : Progress::kIdle;
}

Result<bool> TopkWork::advance_exchange(std::size_t index) {
  Exchange& exchange = exchanges_[index];
  if (exchange.item >= compressed_) {
    return false;
  }
  if (exchange.work == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(exchange.work, items_[exchange.item]->next_exchange(inter(index)));
    if (exchange.work == nullptr) {
      exchange.item += exchanges_.size();
      return true;
    }
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, exchange.work->advance());
  if (progress != Progress::kDone) {
    return progress == Progress::kMoved;
  }
  exchange.work.reset();
  return true;
}

/// Of a step that has several operations, one at a time, so that what it makes ready goes to the
/// network at once.
Result<bool> TopkWork::advance_intra() {
  if (step_ == schedule_.steps()) {
    return false;
  }
  const GridSchedule::Step step = schedule_.step(step_);
  const bool gather = step.half == GridSchedule::Half::kGather;
  if (intra_work_ == nullptr) {
    if (gather && !is_exchanged(step.chunk)) {
      return false;
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool started, start_step(step));
    if (!started) {
      ++step_;
      return true;
    }
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, intra_work_->advance());
  if (progress != Progress::kDone) {
    return progress == Progress::kMoved;
  }
  intra_work_.reset();
  if (!gather) {
    LIGHTCC_RETURN_IF_ERROR(items_[step.chunk]->compress());
    ++compressed_;
    ++step_;
  }
  return true;
}

/// False when the step has come to its end.
Result<bool> TopkWork::start_step(const GridSchedule::Step& step) {
  TopkItem& item = *items_[step.chunk];
  if (step.half == GridSchedule::Half::kGather) {
    LIGHTCC_ASSIGN_OR_RETURN(intra_work_, item.next_gather(intra()));
    if (intra_work_ == nullptr) {
      items_[step.chunk].reset();
    }
    return intra_work_ != nullptr;
  }
  if (intra() != nullptr) {
    intra_work_ = item.start_scatter(*intra());
    return true;
  }
  LIGHTCC_RETURN_IF_ERROR(item.compress());
  ++compressed_;
  return false;
}

}  // namespace

std::unique_ptr<Work> make_topk_allreduce(TopkLevels levels,
                                          std::vector<TopkTensor> tensors,
                                          const TopkJob& job) {
  return std::make_unique<TopkWork>(std::move(levels), std::move(tensors), job);
}

}  // namespace lightcc
