// std::mutex with clang's thread-safety annotations (libstdc++'s has none): clang refuses code that
// touches guarded data without holding its mutex.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HARP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define HARP_THREAD_ANNOTATION(x)
#endif
#define HARP_CAPABILITY(x) HARP_THREAD_ANNOTATION(capability(x))
#define HARP_SCOPED_CAPABILITY HARP_THREAD_ANNOTATION(scoped_lockable)
#define HARP_GUARDED_BY(x) HARP_THREAD_ANNOTATION(guarded_by(x))
#define HARP_REQUIRES(...) HARP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define HARP_ACQUIRE(...) HARP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define HARP_RELEASE(...) HARP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace harp {

class HARP_CAPABILITY("mutex") Mutex {
 public:
  void lock() HARP_ACQUIRE() { mutex_.lock(); }
  void unlock() HARP_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class HARP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HARP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() HARP_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  void notify_all() { condition_.notify_all(); }
  /// Blocks, with the mutex given back meanwhile; may return without a reason.
  void wait(Mutex& mutex) HARP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

 private:
  std::condition_variable condition_;
};

}  // namespace harp
