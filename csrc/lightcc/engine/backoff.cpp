#include "lightcc/engine/backoff.hpp"

#include <sched.h>

#include <chrono>
#include <utility>

namespace lightcc {
namespace {

using std::chrono::microseconds;

// While pausing the clock is read once in so many pauses.
constexpr std::uint32_t kPausesPerReading = 16;
// A rank alone on its host only looks at what the kernel has: about once in a microsecond.
constexpr std::uint32_t kPausesAlone = 16;
// So many waits sleep early after a core came back late.
constexpr int kEarlySleeps = 64;

}  // namespace

BackoffPolicy backoff_policy(int local_size, int cores, bool networked) {
  const std::uint32_t pauses = networked && local_size == 1 ? kPausesAlone : 1;
  if (cores < local_size + (networked ? 1 : 0)) {
    // Ranks of this host want each other's cores, and get them by yielding at once.
    return {.pauses = pauses,
            .pause = Duration::zero(),
            .foreground = microseconds(networked ? 20 : 200),
            .background = microseconds(20),
            .slow_yield = Duration::max(),
            .shuts_gate = networked};
  }
  // Two ranks that yield to each other stay on one core, and two that pause are spread by the
  // kernel: hence the pause. A slice of the scheduler takes 3 ms and more.
  return {.pauses = pauses,
          .pause = microseconds(8),
          .foreground = microseconds(200),
          .background = microseconds(50),
          .slow_yield = microseconds(2500),
          .shuts_gate = networked};
}

Backoff::Backoff(const BackoffPolicy& policy, const Clock& clock, std::function<void()> yield)
    : policy_(policy), clock_(clock), yield_(std::move(yield)) {}

// hot
bool Backoff::keep_looking(Duration limit) {
  if (pauses_ == 0) {
    idle_since_ = now_ = clock_.now();
    yields_now_ = policy_.pause <= Duration::zero();
  }
  pauses_ += policy_.pauses;
  if (!yields_now_) {
    for (std::uint32_t i = 0; i < policy_.pauses; ++i) {
      relax(false);
    }
    if (pauses_ % kPausesPerReading != 0) {
      return true;
    }
    now_ = clock_.now();
    yields_now_ = now_ - idle_since_ >= policy_.pause;
    if (yields_now_ && early_sleeps_ > 0) {
      --early_sleeps_;
      return false;
    }
    return now_ - idle_since_ < limit;
  }
  yield_();
  yields_.fetch_add(1, std::memory_order_relaxed);
  const TimePoint before = now_;
  now_ = clock_.now();
  if (now_ - before >= policy_.slow_yield) {
    slow_yields_.fetch_add(1, std::memory_order_relaxed);
    early_sleeps_ = kEarlySleeps;
  }
  return now_ - idle_since_ < limit;
}

void relax(bool yield) {
  if (yield) {
    (void)::sched_yield();
  } else {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");  // About as long as the above, where `yield` does nothing.
#endif
  }
}

}  // namespace lightcc
