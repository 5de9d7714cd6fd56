// Who drives the progress loop.
//
// Each World has one thread of its own. It sleeps until something happens, steps the core until
// nothing moves, and sleeps again. A thread that waits for a handle takes the loop over instead of
// sleeping until the own thread has done its work (a hand-over between threads costs more than a
// small collective). Whoever holds mutex() drives; the own thread holds it only while awake,
// and gives it up when a waiting thread wants it. Before the loop is left without a driver the
// SleepWord is raised, so that peers ring, and the core is stepped once more.
//
// Whoever drives hands completions over to threads that only run them, as they may wait
// (engine/completion_threads.hpp). A handle is a completion of the engine's own, which only sets a
// flag, so it costs none of that.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/backoff.hpp"
#include "lightcc/engine/completion_threads.hpp"
#include "lightcc/engine/operation_table.hpp"
#include "lightcc/engine/waker.hpp"

namespace lightcc {

/// What a ProgressLoop drives. Thread: whoever holds the loop's mutex, unless said otherwise.
class Driven {
 public:
  Driven() = default;
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;
  virtual ~Driven() = default;

  /// Does what can be done now. True when anything moved.
  virtual bool step() = 0;
  /// Somebody may have woken this rank: the next step looks at every descriptor.
  virtual void note_wakeup() = 0;
  /// True while buckets run or operations wait: a reason to look again soon.
  virtual bool busy() const = 0;
  /// For a driver that is about to sleep, or to leave: from now on peers ring, and the waker's
  /// descriptors tell of everything else. False: something moved meanwhile, so step() again.
  virtual bool prepare_to_sleep() = 0;
  /// How long nothing needs to be looked at.
  virtual Duration time_to_look() const = 0;
  /// The world is over, in one way or the other. Thread: any.
  virtual bool over() const = 0;
  virtual Waker& waker() = 0;
};

/// Thread: any, unless said otherwise.
class ProgressLoop {
 public:
  /// The references outlive the loop.
  ProgressLoop(Driven& core,
               OperationTable& operations,
               const Clock& clock,
               const BackoffPolicy& policy);

  /// Starts the own thread. Errors: kSystem.
  Status start_thread();
  bool has_thread() const { return thread_ != nullptr; }
  /// Ends the own thread, and waits until all completions have run. Blocks: yes.
  void stop_thread() LIGHTCC_EXCLUDES(mutex_);

  /// Drives, or waits while another thread does, until `done` says so or it is time to ask whether
  /// the wait was interrupted. `state`: what the caller waits for; null: for a device. Blocks: yes.
  void help(const std::function<bool()>& done, const HandleState* state) LIGHTCC_EXCLUDES(mutex_);

  /// Whoever holds it drives, or has the core for itself.
  Mutex& mutex() const { return mutex_; }
  /// Times the loop went to sleep.
  std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
  std::uint64_t yields() const { return backoff_.yields(); }
  std::uint64_t slow_yields() const { return backoff_.slow_yields(); }

 private:
  /// True when this thread drove.
  bool try_to_drive(const std::function<bool()>& done);
  void drive(const std::function<bool()>& done) LIGHTCC_REQUIRES(mutex_);
  void rest_until(TimePoint until) LIGHTCC_REQUIRES(mutex_);
  void settle() LIGHTCC_REQUIRES(mutex_);
  void run();
  void drive_in_background() LIGHTCC_REQUIRES(mutex_);
  bool is_wanted_elsewhere() const;
  void run_completions() LIGHTCC_EXCLUDES(mutex_);
  void hand_over_completions() LIGHTCC_EXCLUDES(mutex_);

  Driven& core_;
  OperationTable& operations_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Backoff backoff_;  // Guarded by mutex_, but for its counters.
  std::atomic<int> helpers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> sleeps_{0};
  std::atomic<int> completing_threads_{0};
  std::unique_ptr<std::thread> thread_;
  std::unique_ptr<CompletionThreads> completion_threads_;  // As long as the own thread.
};

}  // namespace lightcc
