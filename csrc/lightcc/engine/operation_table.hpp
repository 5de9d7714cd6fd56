// What this rank has asked for and not yet got: submissions, their names, and handles.
//
// The only part of the engine that caller threads and the progress loop share; everything in it is
// guarded by one mutex, held for moments.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/world.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// A handle's fate. `done` is set last.
struct HandleState {
  std::atomic<bool> done{false};
  std::size_t remaining = 0;
  Status status;  ///< The first failure among its operations.
  std::vector<Outcome> outcomes;
};

/// One submission under way.
struct Operation {
  Submission submission;
  Request request;  ///< As the sequencer sees it.
  std::shared_ptr<HandleState> handle;
  std::size_t place = 0;  ///< In the handle's outcomes.
};

/// Thread: any.
class OperationTable {
 public:
  /// Takes in the operations of one handle, or none of them. kInvalidArgument when a name is in
  /// flight already; the world's error when it is over.
  Result<HandleId> add(std::vector<std::unique_ptr<Operation>> operations) LIGHTCC_EXCLUDES(mutex_);

  /// What was added since the last call, in order; the table keeps owning them.
  std::vector<Operation*> take_new() LIGHTCC_EXCLUDES(mutex_);
  /// Cheap check for take_new(). Thread: the progress loop.
  bool has_new() const { return new_count_.load(std::memory_order_acquire) != 0; }

  /// The operation in flight under `name`, or null.
  Operation* find(std::uint32_t process_set, const std::string& name) LIGHTCC_EXCLUDES(mutex_);
  /// Ends an operation and forgets it.
  void complete(Operation& operation, const Status& status, Outcome outcome)
      LIGHTCC_EXCLUDES(mutex_);
  /// Ends everything with `error`, and whatever is added later.
  void fail_all(const Status& error) LIGHTCC_EXCLUDES(mutex_);

  bool empty() const { return in_flight_count_.load(std::memory_order_acquire) == 0; }
  Status error() const LIGHTCC_EXCLUDES(mutex_);

  /// Null when there is no such handle.
  std::shared_ptr<HandleState> handle(HandleId id) const LIGHTCC_EXCLUDES(mutex_);
  void forget(HandleId id) LIGHTCC_EXCLUDES(mutex_);
  /// Waits until some handle is done, another thread stops driving, or `timeout` has passed.
  void wait_for_change(const HandleState& state, Duration timeout) LIGHTCC_EXCLUDES(mutex_);
  /// Wakes those in wait_for_change().
  void notify() LIGHTCC_EXCLUDES(mutex_);

  std::uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }
  std::uint64_t payload_bytes() const { return payload_bytes_.load(std::memory_order_relaxed); }

 private:
  void complete_locked(Operation& operation, const Status& status, Outcome outcome)
      LIGHTCC_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::unordered_map<std::string, std::unique_ptr<Operation>> in_flight_ LIGHTCC_GUARDED_BY(mutex_);
  std::vector<Operation*> new_ LIGHTCC_GUARDED_BY(mutex_);
  std::unordered_map<HandleId, std::shared_ptr<HandleState>> handles_ LIGHTCC_GUARDED_BY(mutex_);
  HandleId next_handle_ LIGHTCC_GUARDED_BY(mutex_) = 1;
  Status error_ LIGHTCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> new_count_{0};        // Mirrors new_.size().
  std::atomic<std::size_t> in_flight_count_{0};  // Mirrors in_flight_.size().
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint64_t> payload_bytes_{0};
};

}  // namespace lightcc
