// Reports up the tree, commands down, and what they mean on this rank.
#include <algorithm>
#include <chrono>
#include <utility>

#include "lightcc/control/agreement.hpp"
#include "lightcc/control/control_plane.hpp"

namespace lightcc {
namespace {

// A parent that says nothing for so long after a report is late, or sleeps.
constexpr Duration kWakeDelay = std::chrono::milliseconds(10);

// Joined ranks take part in what they never heard of, so everything is checked before it is used.
bool is_consistent(const Signature& s,
                   const std::vector<std::int64_t>& per_member,
                   std::size_t members) {
  const auto nonnegative = [](std::int64_t rows) { return rows >= 0; };
  switch (s.op) {
    case OpType::kAllgather:
      return !s.shape.empty() && per_member.size() == members &&
             std::ranges::all_of(per_member, nonnegative);
    case OpType::kAlltoall:
      return !s.shape.empty() && per_member.size() == members * members &&
             std::ranges::all_of(per_member, nonnegative);
    case OpType::kReducescatter:
      return !s.shape.empty();
    case OpType::kSend:
    case OpType::kRecv:
      return per_member.size() == 2;
    default:
      return true;
  }
}

Status nonsense() {
  return Status(ErrorCode::kPeerFailed, "rank 0 announced something that makes no sense", 0);
}

}  // namespace

bool ControlPlane::decides_for(std::uint32_t process_set) const {
  const auto* ranks = host_ranks_.empty() ? nullptr : process_sets_.find(process_set);
  return ranks != nullptr && std::ranges::includes(host_ranks_, *ranks);
}

// --- Up -----------------------------------------------------------------------------------------

void ControlPlane::submit(const Request& request,
                          const std::string& key,
                          OperationToken operation,
                          std::span<const std::byte> input) {
  if (is_over_) {
    return;
  }
  wants_advance_ = true;
  const auto rank = static_cast<std::uint32_t>(options_.rank);
  if (observer_ != nullptr && !is_root()) {
    observer_->ready(request.signature, rank);
  }
  if (const auto found = slot_by_key_.find(key); found != slot_by_key_.end()) {
    LocalSlot& slot = slots_[found->second];
    if (slot.own == request) {
      slot.waiting = operation;
      reports_.push_back(
          {rank, ReadySlot{found->second}, -1, inline_input(request.signature, input)});
      return;
    }
  }
  waiting_[key] = {request, operation};
  reports_.push_back({rank, request, -1, inline_input(request.signature, input)});
}

std::vector<InlineInput> ControlPlane::inline_input(const Signature& signature,
                                                    std::span<const std::byte> input) const {
  const auto* members = input.empty() ? nullptr : process_sets_.find(signature.process_set);
  if (members == nullptr || !may_be_inline(signature, members->size(), options_.max_inline_bytes)) {
    return {};
  }
  return {{options_.rank, Bytes(input.begin(), input.end())}};
}

void ControlPlane::leave() {
  if (!is_over_ && !std::exchange(is_leaving_, true)) {
    reports_.push_back({static_cast<std::uint32_t>(options_.rank), Leave{}});
    wants_advance_ = true;
  }
}

void ControlPlane::send_reports(TimePoint now) {
  if (is_root()) {
    for (const Report& report : reports_.take()) {
      if (const Status taken = sequence(report, now); !taken.ok()) {
        on_trouble(taken, now);
        return;
      }
    }
    return;
  }
  std::vector<Report> reports;
  if (host_ranks_.empty() && options_.children.empty()) {
    std::swap(reports, reports_.take());  // Below a leader: all go up as they are.
  }
  for (Report& report : reports_.take()) {
    const Result<bool> stays = take_for_host(report, now);
    if (!stays.ok()) {
      on_trouble(stays.status(), now);
      return;
    }
    if (*stays) {
      continue;
    }
    if (options_.children.empty()) {
      reports.push_back(std::move(report));
    } else {
      gather(std::move(report), now, reports);
    }
  }
  gathering_.flush_due(now, reports);
  if (!reports.empty()) {
    const bool is_urgent = std::ranges::any_of(
        reports, [this](const Report& report) { return concerns_idle_parent(report); });
    frames_.push_back({std::move(reports), true, false, kNoLink, is_urgent});
    wake_at_ = options_.wakes_parent ? now + kWakeDelay : wake_at_;
  }
}

// At a leader: whether the report goes no further, or not yet. A join goes up after what the host's
// ranks asked for before has been announced, as a rank that leaves join() may ask for it again.
Result<bool> ControlPlane::take_for_host(const Report& report, TimePoint now) {
  const Signature* signature = host_ranks_.empty() ? nullptr : signature_of(report);
  if (signature == nullptr) {
    return false;
  }
  const auto rank = static_cast<std::int32_t>(report.rank);
  const bool joins = signature->op == OpType::kJoin;
  if (!joins && !decides_for(signature->process_set)) {
    return false;
  }
  LIGHTCC_RETURN_IF_ERROR(sequencer_->on_reports({&rank, 1}, report.what, now, report.inputs));
  const bool waits = joins && sequencer_->has_ready();
  if (waits) {
    reports_.push_back(report);
  }
  return waits || !joins;
}

// A parent that has asked for nothing sleeps until it asks itself, and would then think that all
// others ask just as late.
void ControlPlane::wake_late_parent(TimePoint now) {
  if (now >= wake_at_) {
    wake_at_ = TimePoint::max();
    frames_.push_back({Heartbeat{true}, true, false, kNoLink, true});
  }
}

// At a leader: what the ranks below it and itself ask for alike goes up as one report.
void ControlPlane::gather(Report report, TimePoint now, std::vector<Report>& out) {
  if (!is_gathered(report)) {
    gathering_.flush(out);  // A rank's joins and ends come after all that it asked for before.
    note_join(report);
    out.push_back(std::move(report));
    return;
  }
  const Signature& signature = *signature_of(report);
  set_key(key_, signature.process_set, signature.name);
  const std::size_t speaks_for =
      report.is_of_subtree() ? ranks_below(report.rank, signature.process_set).size() : 1;
  const std::size_t members =
      ranks_below(static_cast<std::uint32_t>(options_.rank), signature.process_set).size();
  gathering_.add(std::move(report), key_, speaks_for, members, now, out);
}

// Only what all members of a process set ask for, and what takes no one out of it.
bool ControlPlane::is_gathered(const Report& report) const {
  const Signature* signature = signature_of(report);
  return signature != nullptr && !is_transfer(signature->op) && signature->op != OpType::kJoin &&
         signature->op != OpType::kAddProcessSet && signature->op != OpType::kRemoveProcessSet &&
         process_sets_.find(signature->process_set) != nullptr;
}

// Who takes part among a leader's ranks, in a process set that exists.
const std::vector<std::int32_t>& ControlPlane::ranks_below(std::uint32_t leader,
                                                           std::uint32_t process_set) {
  return tree_.active_below(
      static_cast<int>(leader), process_set, *process_sets_.find(process_set));
}

void ControlPlane::note_join(const Report& report) {
  const auto* request = std::get_if<Request>(&report.what);
  if (request != nullptr && request->signature.op == OpType::kJoin && tree_.has_rank(report.rank)) {
    tree_.on_join(static_cast<int>(report.rank));
  }
}

// On rank 0: tells the sequencer of each rank that the report is of.
Status ControlPlane::sequence(const Report& report, TimePoint now) {
  note_join(report);
  if (!report.is_of_subtree()) {
    const auto rank = static_cast<std::int32_t>(report.rank);
    return sequence_all({&rank, 1}, report, now);
  }
  const std::vector<std::int32_t>* ranks = nullptr;
  if (is_gathered(report) && tree_.has_rank(report.rank)) {
    ranks = &ranks_below(report.rank, signature_of(report)->process_set);
  }
  if (ranks == nullptr || !std::ranges::binary_search(*ranks, report.last_rank)) {
    return make_error(ErrorCode::kPeerFailed,
                      "received a report of the ranks below rank %u that makes no sense",
                      report.rank);
  }
  std::vector<std::int32_t> in_order = *ranks;
  const auto last = std::ranges::find(in_order, report.last_rank);
  std::rotate(last, last + 1, in_order.end());
  return sequence_all(in_order, report, now);
}

Status ControlPlane::sequence_all(std::span<const std::int32_t> ranks,
                                  const Report& report,
                                  TimePoint now) {
  if (const Signature* tensor = observer_ != nullptr ? signature_of(report) : nullptr) {
    for (const std::int32_t rank : ranks) {
      observer_->ready(*tensor, static_cast<std::uint32_t>(rank));
    }
  }
  return sequencer_->on_reports(ranks, report.what, now, report.inputs);
}

// What a report asks for; null where it asks for nothing, or for what this rank does not know.
const Signature* ControlPlane::signature_of(const Report& report) const {
  if (const auto* request = std::get_if<Request>(&report.what)) {
    return &request->signature;
  }
  const auto* ready = std::get_if<ReadySlot>(&report.what);
  const auto slot = ready != nullptr ? slots_.find(ready->slot) : slots_.end();
  return slot != slots_.end() ? &slot->second.agreed->signature : nullptr;
}

// An operation that the parent belongs to cannot start before the parent asks for it, too.
bool ControlPlane::concerns_idle_parent(const Report& report) const {
  const Signature* signature = signature_of(report);
  if (signature == nullptr || is_transfer(signature->op)) {
    return true;
  }
  return process_sets_.member_index(signature->process_set, options_.parent->rank) < 0;
}

// --- Down ---------------------------------------------------------------------------------------

void ControlPlane::announce(TimePoint now) {
  if (sequencer_ == nullptr || is_suspecting() || is_over_) {
    return;
  }
  if (sequencer_->has_held()) {
    sequencer_->release_held(now);
  }
  std::vector<Command> commands = sequencer_->take_commands(now);
  if (commands.empty()) {
    return;
  }
  if (observer_ != nullptr) {
    observer_->cycle();
  }
  if (const Status applied = apply_all(commands, !is_root(), now); !applied.ok()) {
    on_trouble(applied, now);
    return;
  }
  wants_advance_ = wants_advance_ || (!reports_.empty() && !sequencer_->has_ready());  // Joins.
}

// Carries out the commands here, and passes them on. Nothing leaves before the driver takes it, so
// the order of the two does not matter.
Status ControlPlane::apply_all(std::vector<Command>& commands, bool of_host, TimePoint now) {
  Status applied;
  for (auto command = commands.begin(); command != commands.end() && applied.ok(); ++command) {
    applied = apply(*command, now);
  }
  if (of_host) {
    for (std::size_t i = 0; i < options_.children.size(); ++i) {
      if (!options_.children[i].is_remote) {
        const auto only = static_cast<LinkIndex>(i);
        frames_.push_back({commands, false, true, kNoLink, false, only});
      }
    }
  } else if (!options_.children.empty()) {
    // Whatever a child takes part in, it has outstanding; only the ends of the world come unasked.
    const bool is_urgent = std::ranges::any_of(
        commands, [](const Command& c) { return std::holds_alternative<ShutDown>(c); });
    broadcast(std::move(commands), is_urgent, kNoLink);
  }
  return applied;
}

Status ControlPlane::apply(const Command& command, TimePoint now) {
  if (const auto* execute = std::get_if<Execute>(&command)) {
    return apply_execute(*execute);
  }
  if (const auto* match = std::get_if<MatchReceive>(&command)) {
    return apply_match(*match);
  }
  if (const auto* failure = std::get_if<FailOperation>(&command)) {
    complete_by_name(
        failure->process_set, failure->name, Status(failure->code, failure->message), 0);
  } else if (const auto* added = std::get_if<AddProcessSet>(&command)) {
    process_sets_.add(added->id, added->ranks);
    tree_.on_process_set_changed();
    if (decides_for(added->id)) {
      sequencer_->add_process_set(added->id, added->ranks);
    }
    const OperationToken waiting = take_operation(0, added->name);
    tell_ended(0, added->name);
    actions_.emplace_back(MakeProcessSet{added->id, added->ranks, waiting});
  } else if (const auto* removed = std::get_if<RemoveProcessSet>(&command)) {
    if (decides_for(removed->id)) {
      sequencer_->remove_process_set(removed->id);
    }
    process_sets_.remove(removed->id);
    tree_.on_process_set_changed();
    fail_operations_of(removed->id);
    actions_.emplace_back(DropProcessSet{removed->id});
    complete_by_name(0, removed->name, {}, static_cast<std::int32_t>(removed->id));
  } else if (const auto* joined = std::get_if<AllJoined>(&command)) {
    tree_.on_all_joined();
    if (!host_ranks_.empty()) {
      sequencer_->end_joins();
    }
    complete_by_name(0, kJoinName, {}, joined->last_rank);
  } else if (const auto* shut_down = std::get_if<ShutDown>(&command)) {
    is_closing_ = true;
    closed_by_ = shut_down->rank;
    closing_deadline_ = now + options_.peer_timeout;
    if (!host_ranks_.empty()) {
      sequencer_->shut_down();
    }
  }
  return {};
}

// Whatever still waits in a process set that goes away can never complete.
void ControlPlane::fail_operations_of(std::uint32_t process_set) {
  std::vector<std::string> names;
  for (auto& entry : slots_) {
    LocalSlot& slot = entry.second;
    const Signature& signature = slot.agreed->signature;
    if (signature.process_set == process_set) {
      slot.own.reset();  // The number may come back for other ranks.
      if (slot.waiting != kNoOperation) {
        names.push_back(signature.name);
      }
    }
  }
  for (const auto& entry : waiting_) {
    const Signature& signature = entry.second.request.signature;
    if (signature.process_set == process_set) {
      names.push_back(signature.name);
    }
  }
  const auto error =
      make_error(ErrorCode::kMismatch, "The process set %u was removed.", process_set);
  for (const std::string& name : names) {
    complete_by_name(process_set, name, error, 0);
  }
}

Status ControlPlane::apply_execute(const Execute& execute) {
  RunBucket bucket{execute.process_set, execute.lane, {}, execute.sequence};
  bucket.tensors.reserve(execute.tensors.size());
  for (const AnnouncedTensor& announced : execute.tensors) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<MatchedTensor> tensor,
                             resolve(announced, execute.process_set));
    if (!tensor.has_value()) {
      continue;
    }
    const Signature& signature = tensor->agreed->signature;
    if (!announced.result.empty()) {
      LIGHTCC_RETURN_IF_ERROR(take_result(execute, std::move(*tensor)));
      continue;
    }
    if (signature.op != OpType::kBarrier) {
      if (observer_ != nullptr) {
        observer_->announced(signature, execute);
      }
      bucket.tensors.push_back(std::move(*tensor));
      continue;
    }
    tell_ended(execute.process_set, signature.name);
    if (tensor->operation != kNoOperation) {
      actions_.emplace_back(CompleteOperation{tensor->operation, {}, 0});
    }
  }
  if (!bucket.tensors.empty()) {
    actions_.emplace_back(std::move(bucket));
  }
  return {};
}

Status ControlPlane::take_result(const Execute& execute, MatchedTensor tensor) {
  const Signature& signature = tensor.agreed->signature;
  const Bytes& result = execute.tensors.front().result;
  if (execute.tensors.size() != 1 || tensor.operation == kNoOperation ||
      signature.op != OpType::kAllreduce || result.size() != byte_count(signature)) {
    return nonsense();
  }
  if (observer_ != nullptr) {
    observer_->announced(signature, execute);
  }
  actions_.emplace_back(TakeResult{execute.process_set, std::move(tensor), result});
  return {};
}

// The receive, if it is this rank's, waits under the name that its message has from now on.
Status ControlPlane::apply_match(const MatchReceive& match) {
  tell_ended(match.process_set, match.receive);
  auto waiting = take_waiting(match.process_set, match.receive);
  if (!waiting.has_value()) {
    return {};
  }
  actions_.emplace_back(NameReceive{waiting->operation, match.source, match.send});
  const bool is_free =
      waiting_.try_emplace(key_of(match.process_set, match.send), std::move(*waiting)).second;
  return is_free ? Status() : nonsense();
}

// What an announced tensor is: as said in full, or as its slot says.
Result<std::shared_ptr<const AgreedTensor>> ControlPlane::agreed_tensor(
    const AnnouncedTensor& announced, std::uint32_t process_set) const {
  const auto* ranks = process_sets_.find(process_set);
  const bool by_slot = !announced.signature.has_value();
  if (const auto slot = slots_.find(announced.slot);
      ranks != nullptr && by_slot && slot != slots_.end()) {
    return slot->second.agreed;
  }
  if (ranks == nullptr || by_slot || announced.signature->process_set != process_set ||
      !is_consistent(*announced.signature, announced.per_member, ranks->size())) {
    return nonsense();
  }
  return std::make_shared<const AgreedTensor>(
      AgreedTensor{*announced.signature, announced.per_member});
}

// What an announced tensor is, and which operation of this rank it carries out; nothing when this
// rank takes no part.
Result<std::optional<MatchedTensor>> ControlPlane::resolve(const AnnouncedTensor& announced,
                                                           std::uint32_t process_set) {
  MatchedTensor tensor;
  LIGHTCC_ASSIGN_OR_RETURN(tensor.agreed, agreed_tensor(announced, process_set));
  const Signature& signature = tensor.agreed->signature;
  forget_report(process_set, signature.name);
  const bool takes_part = is_transfer(signature.op)
                              ? std::ranges::find(tensor.agreed->per_member, options_.rank) !=
                                    tensor.agreed->per_member.end()
                              : process_sets_.member_index(process_set, options_.rank) >= 0;
  std::optional<Request> own;
  if (takes_part) {
    const auto slot = slots_.find(announced.slot);
    if (slot != slots_.end() && slot->second.waiting != kNoOperation &&
        slot->second.agreed->signature.name == signature.name) {
      tensor.operation = std::exchange(slot->second.waiting, kNoOperation);
      own = std::move(slot->second.own);
    } else if (auto waiting = take_waiting(process_set, signature.name)) {
      tensor.operation = waiting->operation;
      own = std::move(waiting->request);
    }
    if (tensor.operation == kNoOperation && signature.op != OpType::kAllreduce &&
        signature.op != OpType::kBarrier) {
      return nonsense();
    }
  }
  if (announced.slot != kNoSlot && announced.signature.has_value()) {
    remember(announced.slot, tensor.agreed, std::move(own));
  } else if (announced.slot != kNoSlot) {
    // Without a request, this rank must say the next time what it wants.
    slots_[announced.slot].own = std::move(own);
  }
  if (!takes_part) {
    tell_ended(process_set, signature.name);
  }
  return takes_part ? std::optional<MatchedTensor>(std::move(tensor)) : std::nullopt;
}

void ControlPlane::tell_ended(std::uint32_t process_set, const std::string& name) {
  if (observer_ != nullptr) {
    observer_->ended(process_set, name);
  }
}

// What was reported under this name is over.
void ControlPlane::forget_report(std::uint32_t process_set, const std::string& name) {
  if (!gathering_.empty()) {
    set_key(key_, process_set, name);
    gathering_.forget(key_);
  }
}

void ControlPlane::remember(std::uint32_t slot_number,
                            std::shared_ptr<const AgreedTensor> agreed,
                            std::optional<Request> own) {
  slot_by_key_[key_of(agreed->signature.process_set, agreed->signature.name)] = slot_number;
  LocalSlot& slot = slots_[slot_number];
  slot.agreed = std::move(agreed);
  slot.own = std::move(own);
}

void ControlPlane::complete_by_name(std::uint32_t process_set,
                                    const std::string& name,
                                    const Status& status,
                                    std::int32_t value) {
  forget_report(process_set, name);
  tell_ended(process_set, name);
  if (const OperationToken operation = take_operation(process_set, name);
      operation != kNoOperation) {
    actions_.emplace_back(CompleteOperation{operation, status, value});
  }
}

std::optional<ControlPlane::Waiting> ControlPlane::take_waiting(std::uint32_t process_set,
                                                                const std::string& name) {
  const auto found = waiting_.find(key_of(process_set, name));
  if (found == waiting_.end()) {
    return std::nullopt;
  }
  Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  return waiting;
}

// The operation that waits under this name, however it was reported.
OperationToken ControlPlane::take_operation(std::uint32_t process_set, const std::string& name) {
  if (const auto waiting = take_waiting(process_set, name)) {
    return waiting->operation;
  }
  const auto found = slot_by_key_.find(key_of(process_set, name));
  return found == slot_by_key_.end() ? kNoOperation
                                     : std::exchange(slots_[found->second].waiting, kNoOperation);
}

std::size_t ControlPlane::slot_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(slots_, [](const auto& slot) { return slot.first < kFirstHostSlot; }));
}

std::size_t ControlPlane::waiting_count() const {
  return waiting_.size() +
         static_cast<std::size_t>(std::ranges::count_if(
             slots_, [](const auto& slot) { return slot.second.waiting != kNoOperation; }));
}

}  // namespace lightcc
