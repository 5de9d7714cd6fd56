// What the thread that watches NCCL sleeps on.
#pragma once

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"

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

}  // namespace lightcc::cuda
