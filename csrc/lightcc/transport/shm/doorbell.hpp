// How a rank that sleeps is woken by another rank of its host.
//
// Ranks talk through shared memory and only look there while they run. Before a rank sleeps it says
// so in `sleeping` in its own cache line of shared memory, looks once more, and then waits on its
// eventfd and its mail. A rank that has published something for another calls ring(): one load
// while the other is awake, one datagram when it sleeps.
//
// A rank that sleeps with nothing outstanding (kIdle) is left alone by ring(): collectives need its
// own call before they can go on, and then it looks by itself. Between two calls of a program that
// waits for each, that saves a system call and a thread's wake-up per call. What an idle rank must
// act on all the same is published with call().
//
// Ordering: the sleeper does  sleeping.store(x); fence; look again;  the ringer does  publish;
// fence; sleeping.load().  The fences are sequentially consistent, so one of the two sees the
// other. A store alone would not do: not all looks are sequentially consistent, and an ARM
// processor may do the others before the store.
#pragma once

#include <atomic>
#include <cstdint>

#include "lightcc/net/socket_address.hpp"

namespace lightcc {

/// Values of SleepWord::sleeping.
enum SleepState : std::uint32_t {
  kAwake = 0,
  kWaiting = 1,  ///< With operations outstanding.
  kIdle = 2,     ///< With none.
};

/// Lives in shared memory, one per rank of the host, zero-initialised.
struct alignas(64) SleepWord {
  std::atomic<std::uint32_t> sleeping;  ///< A SleepState.
  /// Raised about once a second while the rank's progress loop is alive; see engine/liveness.
  std::atomic<std::uint32_t> heartbeat;
  /// The rank's world is over, and its neighbours have been told, or told it. Its end is no news.
  std::atomic<bool> is_over;
};
static_assert(sizeof(SleepWord) == 64);

/// A rank's bell. Owns nothing. hot: no system call while the rank is awake.
class Doorbell {
 public:
  Doorbell() = default;
  /// This process's own.
  Doorbell(SleepWord* word, int event_fd) : word_(word), fd_(event_fd) {}
  /// That of another rank, whose mail has this name; `socket` is this rank's own.
  Doorbell(SleepWord* word, int socket, const SocketAddress* name)
      : word_(word), fd_(socket), name_(name) {}

  /// Wakes a rank that waits. Call after publishing, which this call's fence follows.
  void ring() const {
    if (state() == kWaiting) {
      wake();
    }
  }
  /// Wakes an idle rank, too.
  void call() const {
    if (state() != kAwake) {
      wake();
    }
  }

 private:
  std::uint32_t state() const {
    if (word_ == nullptr) {
      return kAwake;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // Partner: Waker::prepare_to_sleep().
    return word_->sleeping.load(std::memory_order_seq_cst);
  }
  void wake() const;  // Clears `sleeping`, and writes.

  SleepWord* word_ = nullptr;
  int fd_ = -1;
  const SocketAddress* name_ = nullptr;
};

}  // namespace lightcc
