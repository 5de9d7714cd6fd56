#include "lightcc/control/sequencer.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "lightcc/control/agreement.hpp"

namespace lightcc {
namespace {

// As many are kept for the next step; a model with more gradients allocates for the rest.
constexpr std::size_t kMaxSpare = 1024;

// Whether members that joined may be taken as contributing zeros.
bool allows_join(const Signature& s) {
  if (s.op == OpType::kBarrier) {
    return true;
  }
  return s.op == OpType::kAllreduce &&
         (s.reduce_op == ReduceOp::kSum || s.reduce_op == ReduceOp::kAverage);
}

int index_of(const std::vector<std::int32_t>& members, int rank) {
  const auto position = std::ranges::lower_bound(members, rank);
  return position == members.end() || *position != rank
             ? -1
             : static_cast<int>(position - members.begin());
}

// The same for what repeats in each step; automatic names do not.
std::size_t identity_of(const Signature& s) {
  if (!s.is_automatic) {
    return std::hash<std::string>()(s.name);
  }
  std::size_t identity = static_cast<std::size_t>(s.op) * 64 + static_cast<std::size_t>(s.dtype);
  for (const std::int64_t extent : s.shape) {
    identity = identity * 1000003 + static_cast<std::size_t>(extent);
  }
  return identity;
}

// An honest rank checks its own requests before it reports them (engine/submission).
bool is_possible(const Request& request, int rank, int world_size, const ProcessSetTable& sets) {
  const Signature& s = request.signature;
  const auto set_size = sets.find(s.process_set)->size();
  const auto may_be_added = [&](const std::vector<std::int32_t>& ranks) {
    return !ranks.empty() && ranks.front() >= 0 && ranks.back() < world_size &&
           std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end();
  };
  if (element_count(s.shape) < 0) {
    return false;
  }
  switch (s.op) {
    case OpType::kAllgather:
    case OpType::kReducescatter:
      return !s.shape.empty();
    case OpType::kAlltoall:
      return !s.shape.empty() && request.splits.size() == set_size &&
             std::ranges::all_of(request.splits, [&](std::int64_t rows) {
               return rows >= 0 && rows <= s.shape[0];
             });
    case OpType::kBroadcast:
      return sets.member_index(s.process_set, s.root_or_peer) >= 0;
    case OpType::kSend:
    case OpType::kRecv:
      if (s.is_open_receive() && s.root_or_peer == kAnySource) {
        return set_size > 1;
      }
      return s.root_or_peer != rank && sets.member_index(s.process_set, s.root_or_peer) >= 0;
    case OpType::kAddProcessSet:
      return s.process_set == 0 && may_be_added(request.ranks);
    case OpType::kRemoveProcessSet:
      return s.process_set == 0 && s.root_or_peer > 0 &&
             sets.find(static_cast<std::uint32_t>(s.root_or_peer)) != nullptr;
    default:
      return true;
  }
}

}  // namespace

Sequencer::Sequencer(const SequencerOptions& options, ProcessSetTable process_sets)
    : options_(options),
      process_sets_(std::move(process_sets)),
      last_asked_(static_cast<std::size_t>(options.world_size), 0),
      slow_ranks_(static_cast<std::size_t>(options.world_size), options.slow_time),
      joined_(static_cast<std::size_t>(options.world_size), 0) {}

Status Sequencer::on_report(const Report& report, TimePoint now) {
  const auto rank = static_cast<std::int32_t>(report.rank);
  return on_reports({&rank, 1}, report.what, now, report.inputs);
}

Status Sequencer::on_reports(Ranks ranks,
                             const Report::What& what,
                             TimePoint now,
                             std::span<const InlineInput> inputs) {
  for (const std::int32_t rank : ranks) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= joined_.size()) {
      return make_error(ErrorCode::kPeerFailed,
                        "received a report of rank %u, which does not exist",
                        static_cast<std::uint32_t>(rank));
    }
  }
  if (shut_down_ || ranks.empty()) {
    return {};  // The ShutDown command tells the ranks.
  }
  if (const auto* request = std::get_if<Request>(&what)) {
    return on_request(ranks, *request, inputs, now);
  }
  if (const auto* ready = std::get_if<ReadySlot>(&what)) {
    return on_ready_slot(ranks, ready->slot, inputs, now);
  }
  on_leave(ranks.front());
  return {};
}

Status Sequencer::on_request(Ranks ranks,
                             const Request& request,
                             std::span<const InlineInput> inputs,
                             TimePoint now) {
  const int first = ranks.front();
  const Signature& signature = request.signature;
  if (signature.op == OpType::kJoin) {
    on_join(first);
    return {};
  }
  if (process_sets_.find(signature.process_set) != nullptr &&
      !is_possible(request, first, options_.world_size, process_sets_)) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank %d asks for an impossible %s '%s'",
                      first,
                      op_type_name(signature.op),
                      signature.name.c_str());
  }
  LIGHTCC_ASSIGN_OR_RETURN(Pending * found, pending_for(first, signature, now));
  Pending& pending = *found;
  pending.as_slot_says = false;
  if (pending.first_rank != first && pending.error.ok()) {
    pending.error = is_transfer(signature.op) || is_transfer(pending.common.op)
                        ? check_transfer(pending.common, pending.first_rank, signature, first)
                        : check_agreement(pending.common, pending.first_rank, signature, first);
  }
  note_group(pending, signature, ranks.size());
  pending.common.steps_ahead = std::max(pending.common.steps_ahead, signature.steps_ahead);
  if (!request.objection.empty() && pending.error.ok()) {
    pending.error = Status(ErrorCode::kMismatch, request.objection);
  }
  if (signature.op == OpType::kAddProcessSet) {
    if (pending.reported_count == 0) {
      pending.set_ranks = request.ranks;
    } else if (pending.set_ranks != request.ranks && pending.error.ok()) {
      pending.error = make_error(ErrorCode::kMismatch,
                                 "Mismatched process sets: ranks %d and %d add different ranks.",
                                 pending.first_rank,
                                 first);
    }
  }
  for (const std::int32_t rank : ranks) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::size_t position, count_in(pending, rank));
    if (signature.op == OpType::kAllgather && pending.common.op == signature.op) {
      pending.per_member[position] = signature.shape[0];
    }
    if (signature.op == OpType::kAlltoall && pending.common.op == signature.op) {
      pending.splits[position] = request.splits;
    }
  }
  LIGHTCC_RETURN_IF_ERROR(take_inputs(pending, ranks, signature, inputs));
  if (is_timed(pending)) {
    slow_ranks_.on_reports(pending.common.process_set, ranks, now);
  }
  LIGHTCC_ASSIGN_OR_RETURN(Pending * met, meet(pending));
  complete_if_all_reported(*met, ranks.back());
  return {};
}

bool Sequencer::may_meet(const Pending& send, const Pending& receive) {
  const Signature& s = send.common;
  const Signature& r = receive.common;
  return s.op == OpType::kSend && r.op == OpType::kRecv && s.root_or_peer == receive.first_rank &&
         (r.root_or_peer == send.first_rank || r.root_or_peer == kAnySource) &&
         s.process_set == r.process_set && s.mailbox == r.mailbox;
}

Result<Sequencer::Pending*> Sequencer::meet(Pending& pending) {
  if (pending.common.mailbox.empty() || pending.reported_count != 1) {
    return &pending;
  }
  const auto other = std::ranges::find_if(unmet_, [&](const Pending* waiting) {
    return may_meet(*waiting, pending) || may_meet(pending, *waiting);
  });
  if (other == unmet_.end()) {
    unmet_.push_back(&pending);
    return &pending;
  }
  const bool sends = pending.common.op == OpType::kSend;
  Pending& send = sends ? pending : **other;
  Pending& receive = sends ? **other : pending;
  unmet_.erase(other);
  commands_.emplace_back(MatchReceive{
      send.common.process_set, receive.common.name, send.common.name, send.first_rank});
  receive.common.root_or_peer = send.first_rank;
  if (send.error.ok()) {
    send.error =
        receive.error.ok()
            ? check_transfer(send.common, send.first_rank, receive.common, receive.first_rank)
            : receive.error;
  }
  LIGHTCC_RETURN_IF_ERROR(count_in(send, receive.first_rank).status());
  erase(receive);
  return &send;
}

Status Sequencer::on_ready_slot(Ranks ranks,
                                std::uint32_t slot_number,
                                std::span<const InlineInput> inputs,
                                TimePoint now) {
  const int first = ranks.front();
  if (slot_number - options_.first_slot >= slots_.size()) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank %d is ready for slot %u, which does not exist",
                      first,
                      slot_number);
  }
  const Slot& slot = slot_at(slot_number);
  if (slot.is_stale) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank %d is ready for slot %u, whose process set was removed",
                      first,
                      slot_number);
  }
  LIGHTCC_ASSIGN_OR_RETURN(Pending * found, pending_for(first, slot.common, now));
  Pending& pending = *found;
  note_group(pending, slot.common, ranks.size());
  const bool is_same_op = slot.common.op == pending.common.op;  // Else a mismatch, found below.
  const std::size_t members = pending.members->size();
  for (const std::int32_t rank : ranks) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::size_t position, count_in(pending, rank));
    if (is_same_op && slot.common.op == OpType::kAllgather) {
      pending.per_member[position] = slot.per_member[position];
    } else if (is_same_op && slot.common.op == OpType::kAlltoall) {
      const auto begin = slot.per_member.begin() + static_cast<std::ptrdiff_t>(position * members);
      pending.splits[position].assign(begin, begin + static_cast<std::ptrdiff_t>(members));
    }
  }
  LIGHTCC_RETURN_IF_ERROR(take_inputs(pending, ranks, slot.common, inputs));
  if (!pending.as_slot_says && pending.first_rank != first && pending.error.ok()) {
    // Others asked for something new under this name; this rank still means the slot.
    pending.error = check_agreement(pending.common, pending.first_rank, slot.common, first);
  }
  pending.common.steps_ahead = std::max(pending.common.steps_ahead, slot.common.steps_ahead);
  if (is_timed(pending)) {
    slow_ranks_.on_reports(pending.common.process_set, ranks, now);
  }
  complete_if_all_reported(pending, ranks.back());
  return {};
}

Result<Sequencer::Pending*> Sequencer::pending_for(int rank,
                                                   const Signature& signature,
                                                   TimePoint now) {
  const auto* ranks = process_sets_.find(signature.process_set);
  if (ranks == nullptr) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank %d asks for process set %u, which does not exist",
                      rank,
                      signature.process_set);
  }
  if (index_of(*ranks, rank) < 0) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank %d reported '%s' without being a member",
                      rank,
                      signature.name.c_str());
  }
  set_key(key_, signature.process_set, signature.name);
  if (const auto found = pending_.find(key_); found != pending_.end()) {
    return found->second.get();
  }
  Pending& pending = new_pending();
  const auto slot = slot_by_key_.find(key_);
  pending.begin(signature, rank, now);
  pending.slot = slot == slot_by_key_.end() ? kNoSlot : slot->second;
  pending.members =
      is_transfer(signature.op) && signature.root_or_peer != kAnySource
          ? std::make_shared<const std::vector<std::int32_t>>(std::initializer_list<std::int32_t>{
                std::min(rank, signature.root_or_peer), std::max(rank, signature.root_or_peer)})
          : process_sets_.share(signature.process_set);
  pending.reported.assign(pending.members->size(), 0);
  if (signature.op == OpType::kAllgather) {
    pending.per_member.assign(pending.members->size(), 0);
  } else if (signature.op == OpType::kAlltoall) {
    pending.splits.resize(pending.members->size());
  }
  if (is_timed(pending)) {
    slow_ranks_.on_first_report(signature.process_set, identity_of(signature), now);
  }
  return &pending;
}

// Under `key_`, which nothing is pending under.
Sequencer::Pending& Sequencer::new_pending() {
  if (spare_.empty()) {
    return *pending_.try_emplace(key_, std::make_unique<Pending>()).first->second;
  }
  PendingByKey::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = key_;
  return *pending_.insert(std::move(node)).position->second;
}

void Sequencer::Pending::begin(const Signature& signature, int rank, TimePoint now) {
  common = signature;
  first_rank = rank;
  since = now;
  reported_count = 0;
  per_member.clear();
  splits.clear();
  set_ranks.clear();
  inputs.clear();
  as_slot_says = true;
  groups.clear();
  error = {};
  warned = false;
  ready = false;
  group = 0;
}

// The rank's index among the members.
Result<std::size_t> Sequencer::count_in(Pending& pending, int rank) {
  // Nobody else asks for an open receive under its own name.
  const bool may_ask = rank == pending.first_rank || !pending.common.is_open_receive();
  const int index = may_ask ? index_of(*pending.members, rank) : -1;
  // What is complete takes no more reports: its ranks wait for it, or have joined.
  if (index < 0 || pending.ready || pending.reported[static_cast<std::size_t>(index)] != 0) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank %d reported '%s' %s",
                      rank,
                      pending.common.name.c_str(),
                      index < 0 ? "without being a member" : "twice");
  }
  pending.reported[static_cast<std::size_t>(index)] = 1;
  ++pending.reported_count;
  return static_cast<std::size_t>(index);
}

void Sequencer::complete_if_all_reported(Pending& pending, int last_rank) {
  if (!is_complete(pending)) {
    return;
  }
  if (pending.members->size() > 1) {
    ++last_asked_[static_cast<std::size_t>(last_rank)];
  }
  complete(pending);
}

bool Sequencer::is_timed(const Pending& pending) const {
  return slow_ranks_.is_on() && pending.members->size() > 1 && !is_transfer(pending.common.op);
}

bool Sequencer::is_complete(const Pending& pending) const {
  if (pending.reported_count == pending.members->size()) {
    return true;
  }
  if (!broken_groups_.empty() && is_rest_of_group(pending)) {
    return true;
  }
  if (joined_count_ == 0) {
    return false;
  }
  for (std::size_t i = 0; i < pending.members->size(); ++i) {
    if (pending.reported[i] == 0 && joined_[static_cast<std::size_t>((*pending.members)[i])] == 0) {
      return false;
    }
  }
  return true;
}

bool Sequencer::lacks_joined(const Pending& pending) const {
  return pending.reported_count < pending.members->size();
}

void Sequencer::complete(Pending& pending) {
  pending.ready = true;
  if (!pending.common.mailbox.empty()) {
    std::erase(unmet_, &pending);
  }
  if (is_timed(pending)) {
    slow_ranks_.on_complete(pending.common.process_set);
  }
  if (pending.error.ok() && lacks_joined(pending) && !allows_join(pending.common)) {
    const bool reduces = pending.common.op == OpType::kAllreduce;
    pending.error = make_error(ErrorCode::kMismatch,
                               "%s%s%s is not supported with Join at this time.",
                               op_type_name(pending.common.op),
                               reduces ? " with " : "",
                               reduces ? reduce_op_name(pending.common.reduce_op) : "");
  }
  if (pending.groups.empty() && pending.common.group_size > 0 && !pending.common.group.empty()) {
    complete_group_member(pending);
  } else {
    break_groups(pending);
    finish(pending);
  }
}

void Sequencer::finish(Pending& pending) {
  if (!pending.error.ok()) {
    announce_failure(pending, pending.error);
    erase(pending);
    return;
  }
  switch (pending.common.op) {
    case OpType::kAddProcessSet:
    case OpType::kRemoveProcessSet:
    case OpType::kBarrier:
      announce_now(pending);
      erase(pending);
      return;
    default:
      break;
  }
  if (announce_result(pending)) {
    erase(pending);
    return;
  }
  Queue& queue = queues_[pending.common.process_set];
  if (options_.horovod_cycle > Duration::zero() && fuses(pending.common) &&
      fusion_of(pending.common).rule == FusionRule::kHorovod) {
    queue.held.push_back(&pending);
    ++held_count_;
  } else {
    queue.ready.push_back(&pending);
  }
}

void Sequencer::announce_failure(const Pending& pending, const Status& error) {
  commands_.emplace_back(FailOperation{
      pending.common.process_set, pending.common.name, error.code(), error.message()});
}

// What needs no lane: once announced, it has happened.
void Sequencer::announce_now(Pending& pending) {
  const Signature& s = pending.common;
  if (s.op == OpType::kAddProcessSet) {
    const std::uint32_t id = process_sets_.next_id();
    process_sets_.add(id, pending.set_ranks);
    commands_.emplace_back(AddProcessSet{id, s.name, pending.set_ranks});
  } else if (s.op == OpType::kRemoveProcessSet) {
    const auto id = static_cast<std::uint32_t>(s.root_or_peer);
    remove_process_set(id);
    commands_.emplace_back(RemoveProcessSet{id, s.name});
  } else {
    Execute execute;
    execute.sequence = next_sequence_++;
    execute.process_set = s.process_set;
    execute.tensors.push_back({kNoSlot, s, {}});
    commands_.emplace_back(std::move(execute));
  }
}

void Sequencer::remove_process_set(std::uint32_t process_set) {
  process_sets_.remove(process_set);
  std::erase_if(
      unmet_, [&](const Pending* transfer) { return transfer->common.process_set == process_set; });
  std::erase_if(pending_,
                [&](const auto& entry) { return entry.second->common.process_set == process_set; });
  if (const auto queue = queues_.find(process_set); queue != queues_.end()) {
    held_count_ -= queue->second.held.size();
    queues_.erase(queue);
  }
  slow_ranks_.on_removed(process_set);
  // Groups that were only partly there pointed at what is gone now.
  const std::string prefix = key_of(process_set, "");
  const auto is_of_set = [&](const auto& entry) { return entry.first.starts_with(prefix); };
  std::erase_if(groups_, is_of_set);
  std::erase_if(broken_groups_, is_of_set);
  // The number may come back for other ranks: what a slot meant is then wrong.
  for (Slot& slot : slots_) {
    slot.is_stale = slot.is_stale || slot.common.process_set == process_set;
  }
}

void Sequencer::erase(Pending& pending) {
  set_key(key_, pending.common.process_set, pending.common.name);
  PendingByKey::node_type node = pending_.extract(key_);
  if (spare_.size() < kMaxSpare) {
    spare_.push_back(std::move(node));
  }
}

void Sequencer::on_join(int rank) {
  auto& joined = joined_[static_cast<std::size_t>(rank)];
  if (joined != 0) {
    return;
  }
  joined = 1;
  ++joined_count_;
  last_joined_ = rank;
  std::vector<Pending*> completed;
  for (const auto& entry : pending_) {
    Pending& pending = *entry.second;
    if (!pending.ready && is_complete(pending)) {
      completed.push_back(&pending);
    }
  }
  // The map's order is not the ranks' order; any order will do, as long as it is announced.
  for (Pending* pending : completed) {
    complete(*pending);
  }
}

void Sequencer::end_joins() {
  joined_count_ = 0;
  std::ranges::fill(joined_, std::uint8_t{0});
}

void Sequencer::on_leave(int rank) {
  shut_down();
  commands_.emplace_back(ShutDown{rank});
}

}  // namespace lightcc
