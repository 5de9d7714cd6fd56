// A stack, and who drives it.
//
//   thread    the engine's own thread polls without pause: least latency, a core for it
//   adaptive  the engine's own thread polls while there is work, and for a while after it
//   inline    callers drive the engine when they poll: no hand-over, no core; when nobody polled
//             for a millisecond, the background driver does what has a deadline
//
// In every mode a session is only touched by the holder of the driver lock, one turn at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/time.hpp"
#include "runtime/clock.hpp"
#include "runtime/sleeper.hpp"
#include "runtime/stack.hpp"
#include "runtime/stat_publisher.hpp"
#include "sync/driver_lock.hpp"

namespace harp {

enum class RunMode : std::uint8_t { kThread, kAdaptive, kInline };

class Engine {
 public:
  /// `driver` is the sleeper of the thread that looks after this engine; it outlives it. Null
  /// `publisher`: nobody sees the counters.
  Engine(std::unique_ptr<Stack> stack,
         RunMode mode,
         Sleeper& driver,
         std::unique_ptr<StatPublisher> publisher = nullptr)
      : stack_(std::move(stack)),
        mode_(mode),
        driver_(driver),
        registers_memory_(stack_->datapath().registers_memory()),
        publisher_(std::move(publisher)),
        publish_at_(publisher_ == nullptr ? kNever : Time{}) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() = default;

  /// Thread: any. After posting, and to poll: drives the engine in inline mode, else sees to it
  /// that its thread is awake.
  void drive();

  /// Thread: any. Runs `operation` on the stack. Blocks for a turn at most.
  template <typename Operation>
  auto with_stack(const Operation& operation) {
    const Holding holding(*this);
    return operation(*stack_, clock_now());
  }

  /// Thread: any. See Datapath.
  bool registers_memory() const { return registers_memory_; }

  // --- The background driver's side

  /// What the background driver is to wait for.
  struct Plan {
    Time wake_at{};
    int descriptor = -1;  ///< To be watched; -1: none.
  };

  /// Runs a turn, unless callers do. False: there was nothing to do.
  bool keep(Time now);
  /// From now on drive() wakes the background driver, where the plan has a descriptor; else it need
  /// not.
  Plan plan(Time now);
  /// Sessions exist.
  bool is_alive() const { return is_alive_.load(std::memory_order_relaxed); }

 private:
  /// Has the driver lock; when it goes, a turn follows.
  class Holding {
   public:
    explicit Holding(Engine& engine) : engine_(engine) { engine_.driver_lock_.take(); }
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;
    ~Holding() {
      const Time now = clock_now();
      engine_.end_turn(now);
      engine_.tell_driver(now);
    }

   private:
    Engine& engine_;
  };

  bool end_turn(Time now);
  bool is_driven(Time now) const;
  void tell_driver(Time now);
  void publish();
  Time publish_by() const;

  std::unique_ptr<Stack> stack_;
  RunMode mode_;
  Sleeper& driver_;
  const bool registers_memory_;
  DriverLock driver_lock_;
  // Whoever drives says so and then looks whether it is watched; the background driver says that it
  // watches and then looks whether it is driven. Both sequentially consistent, so one sees the
  // other (Dekker), and callers make no system call while they poll.
  std::atomic<Time> driven_at_{Time{}};
  std::atomic<bool> is_watched_{false};
  std::atomic<bool> is_alive_{false};

  // The holder's.
  std::unique_ptr<StatPublisher> publisher_;
  Time publish_at_;                   ///< Not before.
  std::uint64_t published_work_ = 0;  ///< Turns, idle ones aside, when it was last done.
};

}  // namespace harp
