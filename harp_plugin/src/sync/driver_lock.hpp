// Who may touch an engine's stack: whoever holds its driver lock, for a turn at a time.
//
// The driver lock is not a lock that threads queue for. The engine's background driver, or in
// inline mode a caller that polls, takes it when it is free and goes on with something else when it
// is not: the holder is doing the work that it would do. Only the rare operations that must happen
// now (connect, close) wait for it; while one waits, nobody else takes the driver lock again, so a
// holder's turn is the longest wait.
#pragma once

#include <atomic>
#include <thread>

namespace harp {

class DriverLock {
 public:
  /// False where somebody else has it, or waits for it.
  bool try_take() {
    return waiting_.load(std::memory_order_relaxed) == 0 &&
           !is_held_.load(std::memory_order_relaxed) &&
           !is_held_.exchange(true, std::memory_order_acquire);
  }
  /// Blocks for a turn of the holder at most.
  void take() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    while (is_held_.exchange(true, std::memory_order_acquire)) {
      std::this_thread::yield();
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void give_back() { is_held_.store(false, std::memory_order_release); }
  bool is_wanted() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<bool> is_held_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace harp
