// Wakes a progress loop, also from threads that outlive it.
#pragma once

#include "lightcc/base/export.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/waker.hpp"

namespace lightcc {

/// Thread: any.
class LoopBell {
 public:
  /// Has the loop look at its Works again. Where it is over, nothing happens.
  LIGHTCC_EXPORT void ring() LIGHTCC_EXCLUDES(mutex_);
  /// From here on it wakes this one, which outlives that; null: nobody.
  void connect(const Waker* waker) LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    waker_ = waker;
  }

 private:
  Mutex mutex_;
  const Waker* waker_ LIGHTCC_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace lightcc
