#include "lightcc/engine/executor.hpp"

#include <algorithm>
#include <utility>

#include "lightcc/base/log.hpp"

namespace lightcc {

Executor::Executor(Membership& world,
                   const Knobs& knobs,
                   SimdLevel simd,
                   OperationTable& operations)
    : world_(world),
      simd_(simd),
      num_lanes_(static_cast<std::size_t>(knobs.num_lanes)),
      two_level_asked_(knobs.two_level == true),
      operations_(operations),
      maker_(world, knobs, simd) {}

Status Executor::add_process_set(std::uint32_t id,
                                 const std::vector<std::int32_t>& ranks,
                                 Operation* waiting) {
  Set& set = sets_[id];
  set.ranks = ranks;
  set.lanes.resize(num_lanes_);
  set.waiting = waiting;
  set.member = std::ranges::find(ranks, world_.topology.rank) != ranks.end();
  if (set.member) {
    set.topk_place = maker_.topk_place(ranks);
  }
  ++sets_in_making_;
  return maker_.begin(id, ranks);
}

void Executor::remove_process_set(std::uint32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) {
    return;
  }
  for (const auto& lane : found->second.lanes) {
    queued_ -= lane.size();
  }
  sets_.erase(found);
  topk_.forget(id);
}

void Executor::run(Bucket bucket) {
  const auto found = sets_.find(bucket.process_set);
  if (found == sets_.end()) {
    return;
  }
  ++queued_;
  auto& lane = found->second.lanes[bucket.lane % num_lanes_];
  lane.push_back({std::move(bucket), nullptr});
}

Result<bool> Executor::advance() {
  bool moved = false;
  if (sets_in_making_ > 0) {
    LIGHTCC_ASSIGN_OR_RETURN(moved, make_groups());
  }
  if (queued_ == 0) {
    return moved;
  }
  for (auto& entry : sets_) {
    Set& set = entry.second;
    for (std::size_t lane = 0; lane < num_lanes_ && set.groups.has_value(); ++lane) {
      if (!set.lanes[lane].empty()) {
        LIGHTCC_ASSIGN_OR_RETURN(const bool lane_moved, advance_lane(set, lane));
        moved = moved || lane_moved;
      }
    }
  }
  return moved;
}

Result<bool> Executor::make_groups() {
  // The end of a host socket is reported by the loop, after what its process said before.
  const auto exchanged = maker_.exchange_segments();
  bool moved = exchanged.ok() && *exchanged;
  sets_in_making_ = 0;
  for (auto& [id, set] : sets_) {
    if (set.member && !set.groups.has_value()) {
      LIGHTCC_ASSIGN_OR_RETURN(set.groups, maker_.try_finish(id, set.ranks));
    }
    if (set.member && !set.groups.has_value()) {
      ++sets_in_making_;
    } else if (set.waiting != nullptr) {
      Outcome outcome;
      outcome.value = static_cast<std::int32_t>(id);
      operations_.complete(*std::exchange(set.waiting, nullptr), {}, std::move(outcome));
      moved = true;
    }
  }
  return moved;
}

Result<bool> Executor::advance_lane(Set& set, std::size_t lane) {
  bool moved = false;
  auto& queue = set.lanes[lane];
  while (!queue.empty()) {
    Running& front = queue.front();
    if (front.work == nullptr) {
      explain_adasum_once(set, front.bucket);
      const BucketPlace place{.group = *set.groups->groups[lane],
                              .members = set.ranks,
                              .simd = simd_,
                              .topk_place = set.topk_place,
                              .grid = set.groups->grids[lane],
                              .topk = topk_};
      LIGHTCC_ASSIGN_OR_RETURN(front.work, start_bucket(front.bucket, place));
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, front.work->advance());
    moved = moved || progress != Progress::kIdle;
    if (progress != Progress::kDone) {
      return moved;
    }
    front.work.reset();
    finish(front);
    queue.pop_front();
    --queued_;
  }
  return moved;
}

std::optional<GridPlace> Executor::topk_place(std::uint32_t process_set) const {
  const auto found = sets_.find(process_set);
  return found == sets_.end() ? std::nullopt : found->second.topk_place;
}

// Adasum compares whole vectors of whole ranks; it goes through the flat group (start_bucket()).
void Executor::explain_adasum_once(const Set& set, const Bucket& bucket) {
  const Signature& first = bucket.tensors.front().signature;
  if (explained_adasum_ || !two_level_asked_ || !set.groups->two_level ||
      first.op != OpType::kAllreduce || first.reduce_op != ReduceOp::kAdasum ||
      set.ranks.front() != world_.topology.rank) {
    return;
  }
  explained_adasum_ = true;
  LIGHTCC_LOG(LogLevel::kWarning,
              "Adasum has no two-level all-reduce; '%s' and other Adasum operations run flat",
              first.name.c_str());
}

void Executor::finish(Running& running) {
  ++buckets_;
  finished_.emplace_back(running.bucket.process_set, running.bucket.lane);
  for (BucketTensor& tensor : running.bucket.tensors) {
    if (tensor.operation != nullptr) {
      operations_.complete(*tensor.operation, {}, std::move(tensor.outcome));
    }
  }
}

void Executor::drop_all() {
  // Works before the groups (and their channels) that they use; the map's destructor does just that
  // only because Running comes after groups in Set, so say it.
  for (auto& entry : sets_) {
    for (auto& lane : entry.second.lanes) {
      lane.clear();
    }
  }
  sets_.clear();
  queued_ = 0;
  sets_in_making_ = 0;
}

}  // namespace lightcc
