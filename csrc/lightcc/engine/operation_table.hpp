// What this rank has asked for and not yet got: operations, their names, and handles.
//
// The only part of the engine that caller threads and the progress loop share; everything in it is
// guarded by one mutex, held for moments. An operation is found by its key (process set and name)
// once, when it is added; what comes back has a slot, which finds it from then on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/memory_in_use.hpp"
#include "lightcc/engine/names.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// An operation under way.
struct InFlight {
  Operation operation;
  Handle handle;
  std::size_t index = 0;             ///< In the handle's outcomes.
  const std::string* key = nullptr;  ///< Lies in the table's entry.
  const Signature& signature() const { return operation.request.signature; }
};

using InFlightByKey = std::unordered_map<std::string, InFlight>;  // By key_of().

/// The fate of what was submitted in one call. `done` is set last.
struct HandleState {
  std::atomic<bool> done{false};
  std::size_t remaining = 0;
  Status status;  ///< The first failure among its operations.
  std::vector<Outcome> outcomes;
  std::vector<std::shared_ptr<DeviceEnd>>
      ends;  ///< Those of the outcomes, also when these are taken.
  std::vector<std::function<void()>> callbacks;  ///< Run once when done. Guarded by the table.
  bool repeats = false;                          ///< As in SubmitOptions.
  std::uint32_t process_set = 0;                 ///< The set in which it repeats.
  InFlightByKey::node_type idle;  ///< What repeats, between two times. Guarded by the table.
};

/// Thread: any, unless said otherwise.
class OperationTable {
 public:
  explicit OperationTable(int rank = 0) : names_(rank), memory_(rank) {}

  /// Names the operations of one handle and takes them in, or none of them. `state` is new, and may
  /// have callbacks. kInvalidArgument when a name is in flight already or too long, or memory is in
  /// use; the world's error when it is over.
  Result<Handle> add(std::vector<Operation> operations,
                     Grouping grouping,
                     Handle state = std::make_shared<HandleState>()) LIGHTCC_EXCLUDES(mutex_);

  /// Takes the operation of `state`, which repeats, in again. Errors: of add().
  Status repeat(const Handle& state, void* input, void* output) LIGHTCC_EXCLUDES(mutex_);

  /// What was added since the last call, in order; the table keeps owning them. The list is valid
  /// until the next call. Thread: the progress loop.
  const std::vector<InFlight*>& take_new() LIGHTCC_EXCLUDES(mutex_);
  /// Cheap check for take_new(). Thread: the progress loop.
  bool has_new() const { return new_count_.load(std::memory_order_acquire) != 0; }

  /// The operation in flight under `name`, or null.
  InFlight* find(std::uint32_t process_set, const std::string& name) LIGHTCC_EXCLUDES(mutex_);
  /// The message of an open receive comes from `source`: it is called `name` from now on, as its
  /// send is. kPeerFailed: something is in flight under that name.
  Status name_receive(InFlight& operation, std::int32_t source, const std::string& name)
      LIGHTCC_EXCLUDES(mutex_);
  /// Ends an operation and forgets it.
  void complete(InFlight& operation, const Status& status, Outcome outcome)
      LIGHTCC_EXCLUDES(mutex_);
  /// Ends everything with `error`, and whatever is added later.
  void fail_all(const Status& error) LIGHTCC_EXCLUDES(mutex_);

  bool empty() const { return in_flight_count_.load(std::memory_order_acquire) == 0; }
  Status error() const LIGHTCC_EXCLUDES(mutex_);

  /// Runs `callback` when the handle is done. False: it is done already, and nothing was kept.
  bool call_when_done(HandleState& state, const std::function<void()>& callback)
      LIGHTCC_EXCLUDES(mutex_);
  /// A callback of a handle that is done, to be run by the caller, once; empty: there is none.
  std::function<void()> take_callback() LIGHTCC_EXCLUDES(mutex_);
  /// Cheap check for take_callback().
  bool has_callbacks() const { return callback_count_.load(std::memory_order_acquire) != 0; }

  /// Waits until some handle is done, another thread stops driving, or `timeout` has passed.
  void wait_for_change(const HandleState& state, Duration timeout) LIGHTCC_EXCLUDES(mutex_);
  /// Wakes those in wait_for_change().
  void notify() LIGHTCC_EXCLUDES(mutex_);

  std::uint64_t in_flight() const { return in_flight_count_.load(std::memory_order_relaxed); }
  std::uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }
  std::uint64_t payload_bytes() const { return payload_bytes_.load(std::memory_order_relaxed); }

 private:
  using Entries = InFlightByKey;

  Status name_all(std::vector<Operation>& operations, Grouping grouping) LIGHTCC_REQUIRES(mutex_);
  Status reserve(const std::vector<Operation>& operations) LIGHTCC_REQUIRES(mutex_);
  Status move_in(std::vector<Operation>& operations) LIGHTCC_REQUIRES(mutex_);
  void announce(Entries::value_type& entry, const Handle& state, std::size_t index)
      LIGHTCC_REQUIRES(mutex_);
  void complete_locked(InFlight& operation, const Status& status, Outcome outcome)
      LIGHTCC_REQUIRES(mutex_);
  void finish_handle(HandleState& state) LIGHTCC_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  Names names_ LIGHTCC_GUARDED_BY(mutex_);
  MemoryInUse memory_ LIGHTCC_GUARDED_BY(mutex_);
  Entries entries_ LIGHTCC_GUARDED_BY(mutex_);
  std::vector<Entries::node_type> spare_ LIGHTCC_GUARDED_BY(mutex_);  // Ended operations had them.
  // Those that reserve() has found free, one after another.
  std::vector<Entries::value_type*> reserved_ LIGHTCC_GUARDED_BY(mutex_);
  std::vector<InFlight*> new_ LIGHTCC_GUARDED_BY(mutex_);
  std::vector<InFlight*> taken_;  // By the progress loop.
  std::deque<std::function<void()>> callbacks_ LIGHTCC_GUARDED_BY(mutex_);
  Status error_ LIGHTCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> new_count_{0};        // Mirrors new_.size().
  std::atomic<std::size_t> callback_count_{0};   // Mirrors callbacks_.size().
  std::atomic<std::size_t> in_flight_count_{0};  // Mirrors entries_.size().
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint64_t> payload_bytes_{0};
};

}  // namespace lightcc
