// The sequencer's way out: what is ready becomes buckets on lanes, and announcements.
#include <algorithm>
#include <bit>
#include <optional>
#include <ranges>
#include <utility>

#include "lightcc/control/agreement.hpp"
#include "lightcc/control/sequencer.hpp"

namespace lightcc {
namespace {

// One bucket runs while the next one, already announced, waits behind it: the announcement's way to
// the other ranks is hidden, and still most of a burst is free to gather in large buckets.
constexpr int kBucketsPerLane = 2;

bool takes_slot(const Signature& s) {
  switch (s.op) {
    case OpType::kAllreduce:
    case OpType::kAllgather:
    case OpType::kBroadcast:
    case OpType::kAlltoall:
    case OpType::kReducescatter:
      return !s.is_automatic;
    default:
      return false;
  }
}

}  // namespace

std::vector<Command> Sequencer::take_commands() {
  bool waiting = false;
  for (auto& [process_set, queue] : queues_) {
    while (!queue.ready.empty() && !shut_down_) {
      const auto lane = free_lane(queue);
      if (!lane.has_value()) {
        break;
      }
      announce_bucket(process_set, queue, *lane);
    }
    waiting = waiting || !queue.ready.empty() || !queue.held.empty();
  }
  // Only when all has been announced: a rank that leaves join() may ask for the same names again.
  if (joined_count_ == options_.world_size && !waiting && !shut_down_) {
    joined_count_ = 0;
    std::ranges::fill(joined_, std::uint8_t{0});
    commands_.emplace_back(AllJoined{last_joined_});
  }
  return std::exchange(commands_, {});
}

void Sequencer::tune(const Tune& tune) {
  options_.fusion = tune.tuning.rule;
  options_.fusion_threshold_bytes = tune.tuning.threshold_bytes;
  options_.num_lanes = static_cast<int>(tune.tuning.lanes);
  commands_.emplace_back(tune);
}

std::optional<std::uint32_t> Sequencer::free_lane(Queue& queue) const {
  const auto lanes = static_cast<std::size_t>(options_.num_lanes);
  const auto& members = *queue.ready.front()->members;
  if (std::ranges::find(members, 0) == members.end()) {
    // Nobody here learns when its buckets are done. So its lanes are always taken as free, and take
    // turns.
    return static_cast<std::uint32_t>(queue.next_lane++ % lanes);
  }
  queue.outstanding.resize(std::max(lanes, queue.outstanding.size()), 0);
  const auto idlest = std::ranges::min_element(queue.outstanding | std::views::take(lanes));
  if (*idlest >= kBucketsPerLane) {
    return std::nullopt;
  }
  ++*idlest;
  return static_cast<std::uint32_t>(idlest - queue.outstanding.begin());
}

void Sequencer::announce_bucket(std::uint32_t process_set, Queue& queue, std::uint32_t lane) {
  candidates_.clear();
  for (const Pending* pending : queue.ready) {
    const Signature& s = pending->common;
    candidates_.push_back({byte_count(s), fuse_key(s), pending->group});
  }
  const FusionWish fusion = fusion_of(queue.ready.front()->common);
  const auto chosen = next_bucket(candidates_, fusion.rule, fusion.limit_bytes);
  Execute execute;
  execute.sequence = next_sequence_++;
  execute.process_set = process_set;
  execute.lane = lane;
  execute.tensors.reserve(chosen.size());
  for (const std::size_t index : chosen) {
    Pending& pending = *std::exchange(queue.ready[index], nullptr);
    execute.tensors.push_back(announce_tensor(pending));
    erase(pending);
  }
  std::erase(queue.ready, nullptr);
  commands_.emplace_back(std::move(execute));
}

AnnouncedTensor Sequencer::announce_tensor(Pending& pending) {
  AnnouncedTensor tensor;
  const Signature& s = pending.common;
  std::vector<std::int64_t> per_member = std::move(pending.per_member);
  if (s.op == OpType::kAlltoall) {
    for (const auto& splits : pending.splits) {
      per_member.insert(per_member.end(), splits.begin(), splits.end());
    }
  } else if (is_transfer(s.op)) {
    const bool sends = s.op == OpType::kSend;
    per_member = {sends ? pending.first_rank : s.root_or_peer,
                  sends ? s.root_or_peer : pending.first_rank};
  }
  tensor.slot = slot_for(pending);
  if (tensor.slot != kNoSlot) {
    Slot& slot = slots_[tensor.slot];
    if (pending.as_slot_says && pending.slot == tensor.slot) {
      return tensor;
    }
    slot = {s, per_member, false};
  }
  tensor.signature = s;
  tensor.per_member = std::move(per_member);
  return tensor;
}

std::uint32_t Sequencer::slot_for(const Pending& pending) {
  if (pending.slot != kNoSlot || !takes_slot(pending.common)) {
    return pending.slot;
  }
  if (slots_.size() >= options_.slot_capacity) {
    return kNoSlot;
  }
  const auto number = static_cast<std::uint32_t>(slots_.size());
  slots_.emplace_back();
  slot_by_key_[key_of(pending.common.process_set, pending.common.name)] = number;
  return number;
}

bool Sequencer::fuses(const Signature& s) {
  return s.op == OpType::kAllreduce && s.reduce_op != ReduceOp::kAdasum;
}

void Sequencer::release_held(TimePoint now) {
  if (held_count_ == 0 || now < next_cycle_) {
    return;
  }
  for (auto& entry : queues_) {
    Queue& queue = entry.second;
    queue.ready.insert(queue.ready.end(), queue.held.begin(), queue.held.end());
    queue.held.clear();
  }
  held_count_ = 0;
  next_cycle_ = now + options_.horovod_cycle;
}

FusionWish Sequencer::fusion_of(const Signature& s) const {
  FusionWish fusion = s.fusion;
  if (fusion.rule == FusionRule::kDefault) {
    fusion = {options_.fusion, options_.fusion_threshold_bytes};
  }
  if (fusion.rule == FusionRule::kHorovod) {
    fusion.limit_bytes = options_.horovod_threshold_bytes;
  }
  return fusion;
}

Sequencer::FuseTraits Sequencer::FuseTraits::of(const Signature& s, const FusionWish& fusion) {
  const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
  const TopkSpec topk = s.topk.value_or(TopkSpec{.ratio = 0.0});
  return {.dtype = s.dtype,
          .memory = s.memory,
          .reduce_op = s.reduce_op,
          .rule = fusion.rule,
          .fp16 = topk.fp16,
          .exact = topk.exact,
          .warmup_steps = topk.warmup_steps,
          .limit_bytes = fusion.limit_bytes,
          .prescale = bits(s.prescale),
          .postscale = bits(s.postscale),
          .ratio = bits(topk.ratio),
          .momentum = bits(topk.momentum)};
}

std::uint64_t Sequencer::fuse_key(const Signature& s) {
  if (!fuses(s)) {
    return 0;
  }
  return fuse_keys_.try_emplace(FuseTraits::of(s, fusion_of(s)), fuse_keys_.size() + 1)
      .first->second;
}

void Sequencer::on_bucket_done(std::uint32_t process_set, std::uint32_t lane) {
  const auto found = queues_.find(process_set);
  if (found != queues_.end() && lane < found->second.outstanding.size() &&
      found->second.outstanding[lane] > 0) {
    --found->second.outstanding[lane];
  }
}

}  // namespace lightcc
