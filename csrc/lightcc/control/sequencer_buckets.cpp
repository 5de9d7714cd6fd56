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

// A bucket behind a running one gathers until that one has so long to run, as far as its cost line
// tells: the announcement must reach all ranks before.
constexpr Duration kMinLead = std::chrono::microseconds(500);
constexpr int kLeadShare = 4;  // One part in so many of the running bucket's time, if that is more.

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

std::vector<Command> Sequencer::take_commands(TimePoint now) {
  next_close_ = TimePoint::max();
  for (auto& [process_set, queue] : queues_) {
    while (!queue.ready.empty() && !shut_down_) {
      const auto lane = free_lane(queue, now);
      if (!lane.has_value()) {
        break;
      }
      announce_bucket(process_set, queue, *lane, now);
    }
  }
  // Only when all has been announced: a rank that leaves join() may ask for the same names again.
  if (joined_count_ == options_.world_size && !has_ready() && !shut_down_) {
    end_joins();
    commands_.emplace_back(AllJoined{last_joined_});
  }
  return std::exchange(commands_, {});
}

bool Sequencer::has_ready() const {
  return std::ranges::any_of(queues_, [](const auto& entry) {
    return !entry.second.ready.empty() || !entry.second.held.empty();
  });
}

std::optional<std::uint32_t> Sequencer::free_lane(Queue& queue, TimePoint now) {
  const auto lanes = static_cast<std::size_t>(options_.num_lanes);
  if (!is_seen(*queue.ready.front())) {
    // Nobody here learns when its buckets are done. So its lanes are always taken as free, and take
    // turns.
    return static_cast<std::uint32_t>(queue.next_lane++ % lanes);
  }
  queue.lanes.resize(lanes);
  const auto idlest = std::ranges::min_element(queue.lanes, {}, &Lane::outstanding);
  if (idlest->outstanding >= kBucketsPerLane) {
    return std::nullopt;
  }
  if (idlest->outstanding > 0) {
    const TimePoint closes = close_time(queue, *idlest);
    if (now < closes && has_room(queue)) {
      next_close_ = std::min(next_close_, closes);
      return std::nullopt;
    }
  }
  return static_cast<std::uint32_t>(idlest - queue.lanes.begin());
}

// The members of a transfer are the sender and the receiver.
bool Sequencer::is_seen(const Pending& pending) const {
  return std::ranges::find(*pending.members, options_.rank) != pending.members->end();
}

// The later a bucket is closed, the more it has gathered. Once the running one is over, it is.
TimePoint Sequencer::close_time(const Queue& queue, const Lane& lane) const {
  if (lane.bytes.front() == 0) {
    return lane.since;
  }
  const CostLine::Fit fit = queue.cost.fit();
  const Duration expected =
      seconds(fit.seconds + fit.seconds_per_byte * static_cast<double>(lane.bytes.front()));
  return lane.since + expected - std::max(kMinLead, expected / kLeadShare);
}

bool Sequencer::has_room(const Queue& queue) const {
  std::uint64_t bytes = 0;
  for (const Pending* pending : queue.ready) {
    const FusionWish fusion = fusion_of(pending->common);
    bytes += byte_count(pending->common);
    if (!fuses(pending->common) || fusion.rule != FusionRule::kAuto ||
        bytes >= fusion.limit_bytes) {
      return false;
    }
  }
  return true;
}

void Sequencer::announce_bucket(std::uint32_t process_set,
                                Queue& queue,
                                std::uint32_t lane,
                                TimePoint now) {
  const bool is_counted = is_seen(*queue.ready.front());
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
  std::uint64_t bytes = 0;
  for (const std::size_t index : chosen) {
    bytes += candidates_[index].key == 0 ? 0 : candidates_[index].bytes;
    Pending& pending = *std::exchange(queue.ready[index], nullptr);
    execute.tensors.push_back(announce_tensor(pending));
    erase(pending);
  }
  std::erase(queue.ready, nullptr);
  if (is_counted) {
    Lane& taken = queue.lanes[lane];
    taken.bytes[taken.outstanding] = bytes;
    if (taken.outstanding++ == 0) {
      taken.since = now;
    }
  }
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
    Slot& slot = slot_at(tensor.slot);
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
  const auto number = options_.first_slot + static_cast<std::uint32_t>(slots_.size());
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

TimePoint Sequencer::next_release() const {
  return held_count_ > 0 ? std::min(next_cycle_, next_close_) : next_close_;
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
  const CompressionSpec spec = s.compression.value_or(CompressionSpec());
  const int compressor = s.compression ? 1 + static_cast<int>(spec.compressor) : 0;
  return {.dtype = s.dtype,
          .memory = s.memory,
          .reduce_op = s.reduce_op,
          .rule = fusion.rule,
          .compressor = static_cast<std::uint8_t>(compressor),
          .fp16 = spec.fp16,
          .two_bits = spec.two_bits,
          .exact = spec.exact,
          .warmup_steps = spec.warmup_steps,
          .limit_bytes = fusion.limit_bytes,
          .prescale = bits(s.prescale),
          .postscale = bits(s.postscale),
          .ratio = bits(spec.ratio),
          .momentum = bits(spec.momentum)};
}

std::uint64_t Sequencer::fuse_key(const Signature& s) {
  if (!fuses(s)) {
    return 0;
  }
  return fuse_keys_.try_emplace(FuseTraits::of(s, fusion_of(s)), fuse_keys_.size() + 1)
      .first->second;
}

void Sequencer::on_bucket_done(std::uint32_t process_set, std::uint32_t lane, TimePoint now) {
  const auto found = queues_.find(process_set);
  if (found == queues_.end() || lane >= found->second.lanes.size() ||
      found->second.lanes[lane].outstanding == 0) {
    return;
  }
  Lane& done = found->second.lanes[lane];
  if (done.bytes.front() > 0) {
    found->second.cost.add(static_cast<double>(done.bytes.front()),
                           std::chrono::duration<double>(now - done.since).count());
  }
  std::ranges::rotate(done.bytes, done.bytes.begin() + 1);
  --done.outstanding;
  done.since = now;
}

}  // namespace lightcc
