// Core's part in negotiation: reports up the tree, commands down, and what they mean on this rank.
#include <algorithm>
#include <utility>

#include "lightcc/control/agreement.hpp"
#include "lightcc/engine/core.hpp"

namespace lightcc {
namespace {

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

}  // namespace

// --- Up -----------------------------------------------------------------------------------------

Status Core::report_new() {
  std::vector<Report> reports;
  for (const InFlight* operation : operations_.take_new()) {
    reports.push_back(report_of(*operation));
    if (sequencer_ == nullptr) {
      timeline_.ready(operation->operation.request.signature, reports.back().rank);
    }
  }
  if (leave_requested_.load(std::memory_order_acquire) && !leave_reported_) {
    leave_reported_ = true;
    reports.push_back({static_cast<std::uint32_t>(world_.topology.rank), Leave{}});
  }
  return send_reports(std::move(reports));
}

Report Core::report_of(const InFlight& operation) const {
  const auto rank = static_cast<std::uint32_t>(world_.topology.rank);
  const Request& request = operation.operation.request;
  if (operation.slot != kNoSlot && slots_[operation.slot].own == request) {
    return {rank, ReadySlot{operation.slot}};
  }
  return {rank, request};
}

Status Core::send_reports(std::vector<Report> reports) {
  if (reports.empty()) {
    return {};
  }
  if (sequencer_ == nullptr) {
    ++frames_sent_;
    const bool urgent = std::ranges::any_of(
        reports, [this](const Report& report) { return concerns_idle_parent(report); });
    const Status sent = world_.parent->send(std::move(reports), urgent);
    return sent.ok() ? sent : peer_gone(sent);
  }
  const TimePoint now = clock_.now();
  for (const Report& report : reports) {
    if (const Signature* tensor = timeline_.is_on() ? signature_of(report) : nullptr) {
      timeline_.ready(*tensor, report.rank);
    }
    LIGHTCC_RETURN_IF_ERROR(sequencer_->on_report(report, now));
  }
  return {};
}

// What a report asks for; null where it asks for nothing, or for what this rank does not know.
const Signature* Core::signature_of(const Report& report) const {
  if (const auto* request = std::get_if<Request>(&report.what)) {
    return &request->signature;
  }
  const auto* ready = std::get_if<ReadySlot>(&report.what);
  return ready != nullptr && ready->slot < slots_.size() ? &slots_[ready->slot].signature : nullptr;
}

// An operation that the parent belongs to cannot start before the parent asks for it, too.
bool Core::concerns_idle_parent(const Report& report) const {
  const Signature* signature = signature_of(report);
  if (signature == nullptr || is_transfer(signature->op)) {
    return true;
  }
  return process_sets()->member_index(signature->process_set, world_.parent->peer_rank()) < 0;
}

// --- Down ---------------------------------------------------------------------------------------

Status Core::announce() {
  if (sequencer_ == nullptr) {
    return {};
  }
  if (sequencer_->has_held()) {
    sequencer_->release_held(clock_.now());
  }
  std::vector<Command> commands = sequencer_->take_commands();
  if (commands.empty()) {
    return {};
  }
  timeline_.cycle();
  Frame frame = std::move(commands);
  broadcast(frame, nullptr);
  for (Command& command : std::get<std::vector<Command>>(frame)) {
    if (const auto* execute = std::get_if<Execute>(&command);
        execute != nullptr && autotuner_ != nullptr) {
      autotune(*execute);
    }
    LIGHTCC_RETURN_IF_ERROR(apply(command));
  }
  return {};
}

Status Core::apply(Command& command) {
  if (auto* execute = std::get_if<Execute>(&command)) {
    return apply_execute(*execute);
  }
  if (const auto* failure = std::get_if<FailOperation>(&command)) {
    complete_by_name(
        failure->process_set, failure->name, Status(failure->code, failure->message), 0);
  } else if (const auto* added = std::get_if<AddProcessSet>(&command)) {
    ProcessSetTable sets = *process_sets();
    sets.add(added->id, added->ranks);
    replace_process_sets(std::move(sets));
    timeline_.ended(kGlobalProcessSet, added->name);
    return executor_->add_process_set(
        added->id, added->ranks, operations_.find(kGlobalProcessSet, added->name));
  } else if (const auto* removed = std::get_if<RemoveProcessSet>(&command)) {
    ProcessSetTable sets = *process_sets();
    sets.remove(removed->id);
    replace_process_sets(std::move(sets));
    executor_->remove_process_set(removed->id);
    for (LocalSlot& slot : slots_) {
      if (slot.signature.process_set == removed->id) {
        slot.own.reset();  // The number may come back for other ranks.
      }
    }
    complete_by_name(kGlobalProcessSet, removed->name, {}, static_cast<std::int32_t>(removed->id));
  } else if (const auto* joined = std::get_if<AllJoined>(&command)) {
    complete_by_name(kGlobalProcessSet, kJoinName, {}, joined->last_rank);
  } else if (const auto* tune = std::get_if<Tune>(&command)) {
    tune_ = *tune;
    executor_->set_chunk_bytes(tune->tuning.chunk_bytes);
  } else if (const auto* shut_down = std::get_if<ShutDown>(&command)) {
    closing_ = true;
    closed_by_ = shut_down->rank;
    closing_deadline_ = clock_.now() + peer_timeout_;
  }
  return {};
}

void Core::complete_by_name(std::uint32_t process_set,
                            const std::string& name,
                            const Status& status,
                            std::int32_t value) {
  timeline_.ended(process_set, name);
  if (InFlight* operation = operations_.find(process_set, name)) {
    Outcome outcome;
    outcome.value = value;
    operations_.complete(*operation, status, std::move(outcome));
  }
}

Status Core::apply_execute(Execute& execute) {
  Bucket bucket{execute.process_set, execute.lane, {}};
  for (AnnouncedTensor& announced : execute.tensors) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<BucketTensor> tensor,
                             resolve(announced, execute.process_set));
    if (!tensor.has_value()) {
      continue;
    }
    if (tensor->signature.op == OpType::kBarrier) {
      complete_by_name(execute.process_set, tensor->signature.name, {}, 0);
      continue;
    }
    timeline_.announced(tensor->signature, execute);
    bucket.tensors.push_back(std::move(*tensor));
  }
  if (!bucket.tensors.empty()) {
    executor_->run(std::move(bucket));
  }
  return {};
}

// What an announced tensor is, and which operation of this rank it carries out; nothing when this
// rank takes no part.
Result<std::optional<BucketTensor>> Core::resolve(AnnouncedTensor& announced,
                                                  std::uint32_t process_set) {
  const auto nonsense = [] {
    return Status(ErrorCode::kPeerFailed, "rank 0 announced something that makes no sense", 0);
  };
  std::size_t members = 0;
  int index = -1;
  {
    const MutexLock lock(sets_mutex_);
    const auto* ranks = process_sets_->find(process_set);
    if (ranks == nullptr) {
      return nonsense();
    }
    members = ranks->size();
    index = process_sets_->member_index(process_set, world_.topology.rank);
  }
  BucketTensor tensor;
  const bool full = announced.signature.has_value();
  if (full) {
    tensor.signature = std::move(*announced.signature);
    tensor.per_member = std::move(announced.per_member);
    if (tensor.signature.process_set != process_set ||
        !is_consistent(tensor.signature, tensor.per_member, members)) {
      return nonsense();
    }
  } else if (announced.slot < slots_.size()) {
    tensor.signature = slots_[announced.slot].signature;
    tensor.per_member = slots_[announced.slot].per_member;
  } else {
    return nonsense();
  }
  const bool takes_part =
      is_transfer(tensor.signature.op)
          ? std::ranges::find(tensor.per_member, world_.topology.rank) != tensor.per_member.end()
          : index >= 0;
  if (takes_part) {
    tensor.operation = full ? operations_.find(process_set, tensor.signature.name)
                            : operations_.find_slot(announced.slot);
    if (tensor.operation == nullptr && tensor.signature.op != OpType::kAllreduce &&
        tensor.signature.op != OpType::kBarrier) {
      return nonsense();
    }
  }
  if (announced.slot != kNoSlot && announced.slot > slots_.size()) {
    return nonsense();
  }
  if (announced.slot != kNoSlot && full) {
    remember(announced.slot, tensor);
  } else if (announced.slot != kNoSlot && tensor.operation == nullptr) {
    slots_[announced.slot].own.reset();  // The next time this rank must say what it wants.
  }
  if (!takes_part) {
    timeline_.ended(process_set, tensor.signature.name);
  }
  return takes_part ? std::optional<BucketTensor>(std::move(tensor)) : std::nullopt;
}

void Core::remember(std::uint32_t slot_number, const BucketTensor& tensor) {
  if (slot_number == slots_.size()) {
    slots_.emplace_back();
  }
  LocalSlot& slot = slots_[slot_number];
  slot.signature = tensor.signature;
  slot.per_member = tensor.per_member;
  slot.own.reset();
  if (tensor.operation != nullptr) {
    slot.own = tensor.operation->operation.request;
  }
  operations_.set_slot(slot_number, tensor.signature.process_set, tensor.signature.name);
}

}  // namespace lightcc
