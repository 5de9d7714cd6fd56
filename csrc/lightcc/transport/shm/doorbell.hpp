// How a rank that sleeps is woken by another rank of its host.
//
// Ranks talk through shared memory and only look there while they run. Before a rank sleeps it
// raises `sleeping` in its own cache line of shared memory, looks once more, and then waits on its
// eventfd. A rank that has published something for another calls ring(): one load while the other
// is awake, one write() when it sleeps.
//
// Ordering: the sleeper does  sleeping.store(1, seq_cst); look again;  the ringer does
// publish (seq_cst or a fence after it); sleeping.load(seq_cst).  One of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace lightcc {

/// Lives in shared memory, one per rank of the host, zero-initialised.
struct alignas(64) SleepWord {
  std::atomic<std::uint32_t> sleeping;
  /// Raised about once a second while the rank's progress loop is alive; see engine/liveness.
  std::atomic<std::uint32_t> heartbeat;
};
static_assert(sizeof(SleepWord) == 64);

/// The other ranks' bells. Owns nothing. hot: no system call while the other is awake.
class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(SleepWord* word, int event_fd) : word_(word), event_fd_(event_fd) {}

  /// Call after publishing, which must be sequentially consistent or followed by this call's fence.
  void ring() const {
    if (word_ == nullptr) {
      return;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (word_->sleeping.load(std::memory_order_seq_cst) != 0) {
      wake();
    }
  }

 private:
  void wake() const;  // Clears `sleeping` and writes the eventfd.

  SleepWord* word_ = nullptr;
  int event_fd_ = -1;
};

}  // namespace lightcc
