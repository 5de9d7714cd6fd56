#include "lightcc/engine/executor.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "lightcc/base/log.hpp"

namespace lightcc {

Executor::Executor(Membership& world,
                   const Knobs& knobs,
                   SimdLevel simd,
                   const Clock& clock,
                   OperationTable& operations,
                   Timeline& timeline)
    : world_(world),
      simd_(simd),
      num_lanes_(static_cast<std::size_t>(knobs.num_lanes)),
      two_level_asked_(knobs.two_level == true),
      two_level_most_bytes_(static_cast<std::uint64_t>(knobs.two_level_most_bytes)),
      clock_(clock),
      operations_(operations),
      timeline_(timeline),
      maker_(world, knobs, simd) {}

Status Executor::add_process_set(std::uint32_t id,
                                 const std::vector<std::int32_t>& ranks,
                                 InFlight* waiting) {
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
  lane.push_back({std::move(bucket), nullptr, {}, "", chunk_bytes_});
}

Result<bool> Executor::advance() {
  bool moved = false;
  if (sets_in_making_ > 0) {
    LIGHTCC_ASSIGN_OR_RETURN(moved, make_groups());
  }
  awaits_event_ = false;
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
  if (!exchanged.ok() && exchanged.status().code() != ErrorCode::kPeerFailed) {
    return exchanged.status();
  }
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
      LIGHTCC_ASSIGN_OR_RETURN(const bool ready, are_inputs_ready(front.bucket));
      if (!ready) {
        awaits_event_ = true;
        return moved;
      }
      explain_adasum_once(set, front.bucket);
      if (front.chunk_bytes.has_value()) {
        set.groups->groups[lane]->set_chunk_bytes(static_cast<std::size_t>(*front.chunk_bytes));
      }
      const BucketPlace place{.group = *set.groups->groups[lane],
                              .members = set.ranks,
                              .simd = simd_,
                              .topk_place = set.topk_place,
                              .grid = set.groups->grids[lane],
                              .topk = topk_};
      LIGHTCC_ASSIGN_OR_RETURN(front.work, start_bucket(front.bucket, place));
      front.started = clock_.now();
      front.algorithm = algorithm_of(set, front.bucket);
      timeline_.started(front.bucket, front.algorithm, topk_.counters());
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, front.work->advance());
    moved = moved || progress != Progress::kIdle;
    if (progress != Progress::kDone) {
      return moved;
    }
    front.work.reset();
    learn_cost(set, front);
    timeline_.finished(front.bucket, front.algorithm, front.started, topk_.counters());
    finish(front);
    queue.pop_front();
    --queued_;
  }
  return moved;
}

Result<bool> Executor::are_inputs_ready(Bucket& bucket) {
  for (const BucketTensor& tensor : bucket.tensors) {
    if (tensor.operation == nullptr || tensor.operation->operation.ready == nullptr) {
      continue;
    }
    std::shared_ptr<ReadyEvent>& event = tensor.operation->operation.ready;
    LIGHTCC_ASSIGN_OR_RETURN(const bool ready, event->is_ready());
    if (!ready) {
      return false;
    }
    event.reset();  // It is not asked again.
  }
  return true;
}

std::optional<GridPlace> Executor::topk_place(std::uint32_t process_set) const {
  const auto found = sets_.find(process_set);
  return found == sets_.end() ? std::nullopt : found->second.topk_place;
}

// Adasum compares whole vectors of whole ranks; it goes through the flat group (start_bucket()).
void Executor::explain_adasum_once(const Set& set, const Bucket& bucket) {
  const Signature& first = bucket.tensors.front().signature();
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

// What the bucket runs on, as a word for the timeline. The order is start_bucket()'s.
const char* Executor::algorithm_of(const Set& set, const Bucket& bucket) const {
  const Signature& first = bucket.tensors.front().signature();
  if (first.op == OpType::kAllreduce && first.reduce_op == ReduceOp::kAdasum) {
    return "ADASUM";
  }
  if (first.op == OpType::kAllreduce && first.topk && set.topk_place) {
    return "TOPK";
  }
  if (set.groups->two_level && !is_transfer(first.op) && first.op != OpType::kAlltoall &&
      byte_count(bucket) <= two_level_most_bytes_) {
    return "GRID";
  }
  return set.groups->shared ? "SHM" : "NET";
}

void Executor::learn_cost(Set& set, const Running& running) {
  const Signature& first = running.bucket.tensors.front().signature();
  if (first.op != OpType::kAllreduce || first.reduce_op == ReduceOp::kAdasum) {
    return;
  }
  const std::uint64_t bytes = byte_count(running.bucket);
  const bool two_level = set.groups->two_level && bytes <= two_level_most_bytes_;
  CostLine& line = two_level ? set.two_level_cost : set.flat_cost;
  line.add(static_cast<double>(bytes),
           std::chrono::duration<double>(clock_.now() - running.started).count());
}

std::vector<AllreduceCost> Executor::allreduce_costs() const {
  std::vector<AllreduceCost> costs;
  const auto add = [&](std::uint32_t id, bool two_level, std::uint64_t most, const CostLine& line) {
    if (line.samples() > 0) {
      const CostLine::Fit fit = line.fit();
      costs.push_back({id, two_level, most, line.samples(), fit.seconds, fit.seconds_per_byte});
    }
  };
  for (const auto& [id, set] : sets_) {
    add(id, true, two_level_most_bytes_, set.two_level_cost);
    add(id, false, std::numeric_limits<std::uint64_t>::max(), set.flat_cost);
  }
  return costs;
}

void Executor::finish(Running& running) {
  ++buckets_;
  finished_.emplace_back(running.bucket.process_set, running.bucket.lane);
  for (BucketTensor& tensor : running.bucket.tensors) {
    if (tensor.operation != nullptr) {
      operations_.complete(*tensor.operation,
                           tensor.status,
                           tensor.status.ok() ? std::move(tensor.outcome) : Outcome());
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
  awaits_event_ = false;
}

}  // namespace lightcc
