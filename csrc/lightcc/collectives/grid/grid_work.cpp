#include "lightcc/collectives/grid/grid_work.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

GridWork::GridWork(std::shared_ptr<GridState> state, std::unique_ptr<PipelineStages> stages)
    : state_(std::move(state)), stages_(std::move(stages)) {
  for (const auto& group : state_->levels.inter) {
    add_exchange(*group);
  }
}

GridWork::GridWork(Group& exchange, std::unique_ptr<PipelineStages> stages)
    : stages_(std::move(stages)) {
  add_exchange(exchange);
}

void GridWork::add_exchange(Group& group) {
  exchanges_.push_back({.group = &group, .chunk = exchanges_.size(), .work = nullptr});
}

GridWork::~GridWork() {
  drop_works();
  if (!finished_ && state_ != nullptr) {
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
  if (state_ != nullptr && !state_->status.ok()) {
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
    if (state_ != nullptr) {
      state_->fail(moved.status());
    }
    return moved.status();
  }
  finished_ = step_ == stages_->schedule().steps();
  if (finished_) {
    return Progress::kDone;
  }
  return *moved ? Progress::kMoved : Progress::kIdle;
}

/// At most one step, so that what it makes ready goes to the network at once.
Result<bool> GridWork::advance_intra() {
  if (step_ == stages_->schedule().steps()) {
    return false;
  }
  const auto [half, chunk] = stages_->schedule().step(step_);
  const bool scatter = half == ChunkSchedule::Half::kScatter;
  if (!scatter && !is_exchanged(chunk)) {
    return false;
  }
  if (intra_work_ == nullptr) {
    intra_work_ = scatter ? stages_->start_scatter(chunk) : stages_->start_gather(chunk);
  }
  if (intra_work_ != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, intra_work_->advance());
    if (progress != Progress::kDone) {
      return progress == Progress::kMoved;
    }
    intra_work_.reset();
  }
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
    exchange.work = stages_->start_exchange(exchange.chunk, *exchange.group);
  }
  if (exchange.work != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, exchange.work->advance());
    if (progress != Progress::kDone) {
      return progress == Progress::kMoved;
    }
    exchange.work.reset();
  }
  exchange.chunk += exchanges_.size();
  return true;
}

}  // namespace lightcc
