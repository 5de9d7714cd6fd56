// std::mutex with clang's thread-safety annotations (libstdc++'s has none).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "lightcc/base/clock.hpp"

#if defined(__clang__)
#define LIGHTCC_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define LIGHTCC_THREAD_ANNOTATION(x)
#endif
#define LIGHTCC_CAPABILITY(x) LIGHTCC_THREAD_ANNOTATION(capability(x))
#define LIGHTCC_SCOPED_CAPABILITY LIGHTCC_THREAD_ANNOTATION(scoped_lockable)
#define LIGHTCC_GUARDED_BY(x) LIGHTCC_THREAD_ANNOTATION(guarded_by(x))
#define LIGHTCC_REQUIRES(...) LIGHTCC_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define LIGHTCC_EXCLUDES(...) LIGHTCC_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define LIGHTCC_ACQUIRE(...) LIGHTCC_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define LIGHTCC_RELEASE(...) LIGHTCC_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define LIGHTCC_TRY_ACQUIRE(...) LIGHTCC_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define LIGHTCC_NO_THREAD_SAFETY_ANALYSIS LIGHTCC_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace lightcc {

class LIGHTCC_CAPABILITY("mutex") Mutex {
 public:
  void lock() LIGHTCC_ACQUIRE() { mutex_.lock(); }
  void unlock() LIGHTCC_RELEASE() { mutex_.unlock(); }
  bool try_lock() LIGHTCC_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class LIGHTCC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LIGHTCC_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() LIGHTCC_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  void notify_all() { condition_.notify_all(); }
  void notify_one() { condition_.notify_one(); }
  void wait(Mutex& mutex) LIGHTCC_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  /// False when `duration` passed first.
  bool wait_for(Mutex& mutex, Duration duration) LIGHTCC_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified = condition_.wait_for(lock, duration) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace lightcc
