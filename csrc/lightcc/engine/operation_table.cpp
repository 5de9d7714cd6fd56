#include "lightcc/engine/operation_table.hpp"

#include "lightcc/control/agreement.hpp"

namespace lightcc {
namespace {

// So many entries are kept for operations that follow.
constexpr std::size_t kMaxSpareEntries = 64;

Status name_is_taken(const Signature& signature) {
  return make_error(ErrorCode::kInvalidArgument,
                    "Requested to allreduce, allgather, or broadcast a tensor with the same name "
                    "as another tensor that is currently being processed. If you want to request "
                    "another tensor, use a different tensor name. (name '%s')",
                    signature.name.c_str());
}

}  // namespace

// An all-or-nothing group is known by its first member's name; names are unique while in flight.
Status OperationTable::name_all(std::vector<Operation>& operations, Grouping grouping) {
  const bool one_name = grouping == Grouping::kOneName;
  const std::size_t count = operations.size();
  const Name base = one_name ? names_.make(operations.front(), true) : Name();
  for (std::size_t i = 0; i < count; ++i) {
    Signature& s = operations[i].request.signature;
    Name name = one_name ? member_name(base, i, count) : names_.make(operations[i], false);
    s.name = std::move(name.text);
    s.is_automatic = name.is_automatic;
    s.mailbox = std::move(name.mailbox);
    if (grouping != Grouping::kNone && count > 1) {
      s.group = operations.front().request.signature.name;
      s.group_size = static_cast<std::uint32_t>(count);
    }
  }
  for (const Operation& operation : operations) {
    if (operation.request.signature.name.size() > kMaxNameBytes) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a tensor name has %zu bytes; at most %zu are allowed",
                        operation.request.signature.name.size(),
                        kMaxNameBytes);
    }
  }
  return {};
}

// Takes in an entry for each name.
Status OperationTable::reserve(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    const Signature& s = operation.request.signature;
    if (spare_.empty()) {
      Entries made;
      spare_.push_back(made.extract(made.try_emplace("").first));
    }
    Entries::node_type entry = std::move(spare_.back());
    spare_.pop_back();
    set_key(entry.key(), s.process_set, s.name);
    const auto taken = entries_.insert(std::move(entry));
    if (!taken.inserted) {
      return name_is_taken(s);
    }
    reserved_.push_back(&*taken.position);
  }
  return {};
}

// Moves the operations into their entries; none where memory of one is in use.
Status OperationTable::move_in(std::vector<Operation>& operations) {
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& made = reserved_[i]->second.operation;
    made = std::move(operations[i]);
    const Status taken = memory_.add(made);
    if (taken.ok()) {
      continue;
    }
    operations[i] = std::move(made);
    while (i-- > 0) {
      memory_.remove(reserved_[i]->second.operation);
      operations[i] = std::move(reserved_[i]->second.operation);
    }
    return taken;
  }
  return {};
}

Result<Handle> OperationTable::add(std::vector<Operation> operations,
                                   Grouping grouping,
                                   Handle state) {
  const MutexLock lock(mutex_);
  if (!error_.ok()) {
    return error_;
  }
  state->remaining = operations.size();
  state->outcomes.resize(operations.size());
  if (operations.empty()) {
    finish_handle(*state);
    return state;
  }
  reserved_.clear();
  Status refused = name_all(operations, grouping);
  if (refused.ok()) {
    refused = reserve(operations);
  }
  if (refused.ok()) {
    refused = move_in(operations);
  }
  if (!refused.ok()) {
    for (const Entries::value_type* entry : reserved_) {
      entries_.erase(entries_.find(entry->first));
    }
    const std::size_t named = grouping == Grouping::kOneName ? 1 : operations.size();
    for (std::size_t i = 0; i < named; ++i) {
      if (operations[i].request.signature.is_automatic) {
        names_.take_back(operations[i]);
      }
    }
    return refused;
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    announce(*reserved_[i], state, i);
  }
  in_flight_count_.fetch_add(operations.size(), std::memory_order_release);
  new_count_.store(new_.size(), std::memory_order_release);
  return state;
}

void OperationTable::announce(Entries::value_type& entry, const Handle& state, std::size_t index) {
  InFlight& made = entry.second;
  made.handle = state;
  made.index = index;
  made.key = &entry.first;
  new_.push_back(&made);
}

// hot
Status OperationTable::repeat(const Handle& state, void* input, void* output) {
  const MutexLock lock(mutex_);
  if (!error_.ok()) {
    return error_;
  }
  if (state->idle.empty()) {
    for (const auto& entry : entries_) {
      if (entry.second.handle == state) {
        return name_is_taken(entry.second.signature());
      }
    }
    return make_error(ErrorCode::kInvalidArgument, "that operation cannot be repeated");
  }
  Operation& operation = state->idle.mapped().operation;
  operation.input.data = input;
  if (!operation.output.has_value()) {
    operation.output = operation.input;
  }
  operation.output->data = output;
  auto entry = entries_.insert(std::move(state->idle));
  if (!entry.inserted) {
    state->idle = std::move(entry.node);
    return name_is_taken(operation.request.signature);
  }
  if (Status refused = memory_.add(operation); !refused.ok()) {
    state->idle = entries_.extract(entry.position);
    return refused;
  }
  state->done.store(false, std::memory_order_relaxed);
  state->status = {};
  state->remaining = 1;
  state->outcomes.resize(1);
  announce(*entry.position, state, 0);
  in_flight_count_.fetch_add(1, std::memory_order_release);
  new_count_.store(new_.size(), std::memory_order_release);
  return {};
}

const std::vector<InFlight*>& OperationTable::take_new() {
  taken_.clear();
  const MutexLock lock(mutex_);
  new_count_.store(0, std::memory_order_relaxed);
  std::swap(new_, taken_);
  return taken_;
}

InFlight* OperationTable::find(std::uint32_t process_set, const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key_of(process_set, name));
  return found == entries_.end() ? nullptr : &found->second;
}

Status OperationTable::name_receive(InFlight& operation,
                                    std::int32_t source,
                                    const std::string& name) {
  const MutexLock lock(mutex_);
  Signature& s = operation.operation.request.signature;
  std::string key = key_of(s.process_set, name);
  if (entries_.contains(key)) {
    return make_error(ErrorCode::kPeerFailed,
                      "rank 0 gave a receive the message '%s', which another one takes",
                      name.c_str());
  }
  names_.found_source(operation.operation, source);
  s.name = name;
  s.root_or_peer = source;
  s.mailbox.clear();
  Entries::node_type entry = entries_.extract(entries_.find(*operation.key));
  entry.key() = std::move(key);  // What points at the key still does.
  entries_.insert(std::move(entry));
  return {};
}

void OperationTable::complete_locked(InFlight& operation, const Status& status, Outcome outcome) {
  HandleState& state = *operation.handle;
  if (outcome.end != nullptr && (state.ends.empty() || state.ends.back() != outcome.end)) {
    state.ends.push_back(outcome.end);
  }
  state.outcomes[operation.index] = std::move(outcome);
  if (!status.ok() && state.status.ok()) {
    state.status = status;
  }
  const Signature& s = operation.signature();
  if (s.is_open_receive()) {
    names_.close(operation.operation);
  }
  if (s.op == OpType::kJoin && status.ok()) {
    // Ranks that joined early have issued fewer unnamed operations: all start to count anew.
    names_.reset();
  }
  completed_.fetch_add(1, std::memory_order_relaxed);
  payload_bytes_.fetch_add(byte_count(s), std::memory_order_relaxed);
  if (--state.remaining == 0) {
    finish_handle(state);
  }
}

void OperationTable::finish_handle(HandleState& state) {
  for (auto& callback : state.callbacks) {
    callbacks_.push_back(std::move(callback));
  }
  state.callbacks.clear();
  callback_count_.store(callbacks_.size(), std::memory_order_release);
  state.done.store(true, std::memory_order_release);  // Partner: HandleState::done's readers.
  changed_.notify_all();
}

void OperationTable::complete(InFlight& operation, const Status& status, Outcome outcome) {
  const MutexLock lock(mutex_);
  complete_locked(operation, status, std::move(outcome));
  // It may end before the progress loop has taken it: its process set was removed.
  if (!new_.empty() && std::erase(new_, &operation) != 0) {
    new_count_.store(new_.size(), std::memory_order_release);
  }
  in_flight_count_.fetch_sub(1, std::memory_order_release);
  memory_.remove(operation.operation);
  Entries::node_type entry = entries_.extract(entries_.find(*operation.key));
  const Handle state = std::move(operation.handle);  // What it kept alive goes now.
  if (state->repeats) {
    state->idle = std::move(entry);
  } else if (spare_.size() < kMaxSpareEntries) {
    operation.operation.allocator = nullptr;
    operation.operation.ready.reset();
    spare_.push_back(std::move(entry));
  }
}

void OperationTable::fail_all(const Status& error) {
  const MutexLock lock(mutex_);
  if (error_.ok()) {
    error_ = error;
  }
  for (auto& entry : entries_) {
    complete_locked(entry.second, error_, {});
  }
  memory_.clear();
  entries_.clear();
  new_.clear();
  new_count_.store(0, std::memory_order_relaxed);
  in_flight_count_.store(0, std::memory_order_release);
  changed_.notify_all();
}

Status OperationTable::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

bool OperationTable::call_when_done(HandleState& state, const std::function<void()>& callback) {
  const MutexLock lock(mutex_);
  if (state.done.load(std::memory_order_acquire)) {
    return false;
  }
  state.callbacks.push_back(callback);
  return true;
}

std::function<void()> OperationTable::take_callback() {
  const MutexLock lock(mutex_);
  std::function<void()> callback;
  if (!callbacks_.empty()) {
    callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    callback_count_.store(callbacks_.size(), std::memory_order_relaxed);
  }
  return callback;
}

void OperationTable::wait_for_change(const HandleState& state, Duration timeout) {
  const MutexLock lock(mutex_);
  if (!state.done.load(std::memory_order_acquire)) {
    (void)changed_.wait_for(mutex_, timeout);
  }
}

void OperationTable::notify() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

}  // namespace lightcc
