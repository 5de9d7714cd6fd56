// What the progress loop sleeps on, and how it is woken.
//
// One epoll descriptor holds the doorbell, the mail, the sockets of other processes and the
// transport. The loop looks at shared memory while it runs and only there; before it sleeps it
// raises its SleepWord and looks once more (doorbell.hpp has the ordering argument).
//
// The world's own thread sleeps behind a gate, a second epoll descriptor that holds the first.
// Whoever drives in its place shuts the gate, so that an arrival wakes nobody beside him.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/shm/doorbell.hpp"
#include "lightcc/transport/shm/host_mail.hpp"

namespace lightcc {

class Waker {
 public:
  /// `word` and `bell` are this rank's own and outlive the Waker.
  static Result<Waker> make(SleepWord& word, int bell);

  /// Has ready() collect the mail, which outlives the Waker.
  Status watch(HostMail& mail);
  /// Watches `fd` for reading. `tag` comes back from ready(); the two highest are taken.
  Status watch(int fd, std::uint64_t tag);
  void unwatch(int fd);

  /// Tags of the descriptors that have something to read. Empties the doorbell and collects mail.
  std::vector<std::uint64_t> ready();

  /// Announces sleep: from now on peers ring. The caller must look for work once more before
  /// wait().
  void prepare_to_sleep(SleepState as) {
    word_->sleeping.store(as, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // Partner: that of Doorbell::state().
  }
  void cancel_sleep() { word_->sleeping.store(kAwake, std::memory_order_relaxed); }
  /// Sleeps until something happens, which ready() tells then, or until `timeout` has passed, or
  /// up to 1 ms less. Thread: the driver.
  void wait(Duration timeout);
  /// Sleeps while the gate is shut, or nothing happens, until `timeout` has passed. False: it has
  /// passed. Thread: any number at once.
  bool wait_at_gate(Duration timeout) const;
  /// Thread: one at a time, the driver. What came while the gate was shut ends waits when it opens.
  void shut_gate();
  void open_gate();
  /// Sleeps until somebody rings or `timeout` has passed, and empties the doorbell: for a world
  /// that is over, where nobody reads the other descriptors any more.
  void wait_for_bell(Duration timeout) const;
  /// Wakes whoever sleeps. Thread: any.
  void wake() const { Doorbell(word_, bell_).call(); }

 private:
  Waker(SleepWord& word, int bell, UniqueFd epoll, UniqueFd gate)
      : word_(&word), bell_(bell), epoll_(std::move(epoll)), gate_(std::move(gate)) {}
  void set_gate(bool open);
  void collect(int timeout_ms);

  SleepWord* word_;
  int bell_;
  HostMail* mail_ = nullptr;
  UniqueFd epoll_;
  UniqueFd gate_;
  bool is_gate_open_ = true;
  std::array<epoll_event, 64> events_{};
  std::size_t num_events_ = 0;  // That ready() has not told.
};

}  // namespace lightcc
