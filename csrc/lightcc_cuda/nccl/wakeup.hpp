// What the thread that watches NCCL sleeps on.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"

namespace lightcc::cuda {

/// Thread: any. One thread waits.
class Wakeup {
 public:
  void ring() LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    is_rung_ = true;
    rung_.notify_all();
  }
  /// Returns when somebody rings, or has since the last time; or when `timeout` is over.
  void wait(Duration timeout) LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (timeout == Duration::max()) {
      while (!is_rung_) {
        rung_.wait(mutex_);
      }
    } else if (!is_rung_) {
      (void)rung_.wait_for(mutex_, timeout);
    }
    is_rung_ = false;
  }

 private:
  Mutex mutex_;
  CondVar rung_;
  bool is_rung_ LIGHTCC_GUARDED_BY(mutex_) = false;
};

/// An event that a GPU passes.
class Passing {
 public:
  explicit Passing(std::shared_ptr<Wakeup> wakeup) : wakeup_(std::move(wakeup)) {}

  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  /// Nobody may hold this any more when it returns.
  void end() {
    const std::shared_ptr<Wakeup> wakeup = wakeup_;
    is_over_.store(true, std::memory_order_release);
    wakeup->ring();
  }

 private:
  const std::shared_ptr<Wakeup> wakeup_;
  std::atomic<bool> is_over_{false};
};

/// Has a thread of the driver's ring when the GPU passes events, unless the GPU breaks before. A
/// stream waits for a function of the host, so these are on one of their own. Thread: one, with the
/// context current.
class EventNotifier {
 public:
  /// Errors: kSystem.
  static Result<EventNotifier> make(const Driver& driver, std::shared_ptr<Wakeup> wakeup);

  /// Errors: kSystem.
  Result<std::shared_ptr<const Passing>> notify(EventHandle* event);

 private:
  EventNotifier(const Driver& driver, std::shared_ptr<Wakeup> wakeup, Stream stream)
      : driver_(driver), wakeup_(std::move(wakeup)), stream_(std::move(stream)) {}

  const Driver& driver_;
  std::shared_ptr<Wakeup> wakeup_;
  std::deque<std::shared_ptr<Passing>> notified_;  // The driver has their addresses.
  Stream stream_;                                  // It is waited for before they go.
};

}  // namespace lightcc::cuda
