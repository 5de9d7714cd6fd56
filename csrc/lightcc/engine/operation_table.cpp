#include "lightcc/engine/operation_table.hpp"

#include <utility>

#include "lightcc/control/agreement.hpp"

namespace lightcc {
namespace {

std::string key_of(const Operation& operation) {
  return lightcc::key_of(operation.submission.process_set, operation.submission.name);
}

}  // namespace

Result<HandleId> OperationTable::add(std::vector<std::unique_ptr<Operation>> operations) {
  const MutexLock lock(mutex_);
  if (!error_.ok()) {
    return error_;
  }
  auto state = std::make_shared<HandleState>();
  state->remaining = operations.size();
  state->outcomes.resize(operations.size());
  std::vector<std::string> keys;
  for (const auto& operation : operations) {
    keys.push_back(key_of(*operation));
    if (!in_flight_.try_emplace(keys.back(), nullptr).second) {
      keys.pop_back();
      for (const std::string& added : keys) {
        in_flight_.erase(added);
      }
      return make_error(ErrorCode::kInvalidArgument,
                        "Requested to allreduce, allgather, or broadcast a tensor with the same "
                        "name as another tensor that is currently being processed. If you want to "
                        "request another tensor, use a different tensor name. (name '%s')",
                        operation->submission.name.c_str());
    }
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    operations[i]->handle = state;
    operations[i]->place = i;
    new_.push_back(operations[i].get());
    in_flight_[keys[i]] = std::move(operations[i]);
  }
  if (state->remaining == 0) {
    state->done.store(true, std::memory_order_release);
  }
  const HandleId id = next_handle_++;
  handles_[id] = std::move(state);
  in_flight_count_.store(in_flight_.size(), std::memory_order_release);
  new_count_.store(new_.size(), std::memory_order_release);
  return id;
}

std::vector<Operation*> OperationTable::take_new() {
  const MutexLock lock(mutex_);
  new_count_.store(0, std::memory_order_relaxed);
  return std::exchange(new_, {});
}

Operation* OperationTable::find(std::uint32_t process_set, const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = in_flight_.find(lightcc::key_of(process_set, name));
  return found == in_flight_.end() ? nullptr : found->second.get();
}

void OperationTable::complete_locked(Operation& operation, const Status& status, Outcome outcome) {
  HandleState& state = *operation.handle;
  state.outcomes[operation.place] = std::move(outcome);
  if (!status.ok() && state.status.ok()) {
    state.status = status;
  }
  completed_.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t elements = element_count(operation.submission.shape);
  payload_bytes_.fetch_add(
      static_cast<std::uint64_t>(elements) * element_size(operation.submission.dtype),
      std::memory_order_relaxed);
  if (--state.remaining == 0) {
    state.done.store(true, std::memory_order_release);  // Partner: HandleState::done's readers.
    changed_.notify_all();
  }
}

void OperationTable::complete(Operation& operation, const Status& status, Outcome outcome) {
  const MutexLock lock(mutex_);
  const std::string key = key_of(operation);
  complete_locked(operation, status, std::move(outcome));
  // It may end before the progress loop has taken it: its process set was removed.
  if (std::erase(new_, &operation) != 0) {
    new_count_.store(new_.size(), std::memory_order_release);
  }
  in_flight_.erase(key);
  in_flight_count_.store(in_flight_.size(), std::memory_order_release);
}

void OperationTable::fail_all(const Status& error) {
  const MutexLock lock(mutex_);
  if (error_.ok()) {
    error_ = error;
  }
  for (auto& entry : in_flight_) {
    complete_locked(*entry.second, error_, {});
  }
  in_flight_.clear();
  new_.clear();
  new_count_.store(0, std::memory_order_relaxed);
  in_flight_count_.store(0, std::memory_order_release);
  changed_.notify_all();
}

Status OperationTable::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

std::shared_ptr<HandleState> OperationTable::handle(HandleId id) const {
  const MutexLock lock(mutex_);
  const auto found = handles_.find(id);
  return found == handles_.end() ? nullptr : found->second;
}

void OperationTable::forget(HandleId id) {
  const MutexLock lock(mutex_);
  handles_.erase(id);
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
