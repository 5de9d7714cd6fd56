// How the progress loop looks for work before it sleeps.
//
// A driver that finds nothing first keeps its core, as what it waits for may be microseconds away.
// Then it offers the core between looks, as another process may need it to make that possible: a
// rank of another namespace, a data loader. Then it sleeps. A core that comes back late has been
// kept by somebody else for a whole slice of the scheduler, so the next waits sleep early.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "lightcc/base/clock.hpp"

namespace lightcc {

struct BackoffPolicy {
  std::uint32_t pauses = 1;  ///< Between two looks; more where these are system calls only.
  Duration pause{};          ///< Since something moved: so long a driver keeps its core.
  Duration foreground{};     ///< After so long a thread that has nothing else to do sleeps.
  Duration background{};     ///< After so long the own thread sleeps.
  Duration slow_yield{};     ///< A core that comes back this late was kept by somebody else.
  bool shuts_gate = false;   ///< What arrives would wake a thread that sleeps.
};

/// `cores`: those that this process may use. `networked`: what a rank waits for may come from the
/// kernel, which needs a core for it.
BackoffPolicy backoff_policy(int local_size, int cores, bool networked);

/// What a driver does between two looks. Thread: whoever drives, unless said otherwise.
class Backoff {
 public:
  /// `clock` outlives it. `yield` offers the core to whoever wants it.
  Backoff(const BackoffPolicy& policy, const Clock& clock, std::function<void()> yield);

  const BackoffPolicy& policy() const { return policy_; }
  /// Something moved, or a driver begins.
  void reset() { pauses_ = 0; }
  /// After a look that found nothing: pauses, or yields. False: nothing has moved for `limit`, or
  /// somebody else wants the core, so the driver sleeps.
  bool keep_looking(Duration limit);
  /// The time as last read.
  TimePoint now() const { return now_; }

  /// Times that the core was offered. Thread: any.
  std::uint64_t yields() const { return yields_.load(std::memory_order_relaxed); }
  /// Times that it came back late. Thread: any.
  std::uint64_t slow_yields() const { return slow_yields_.load(std::memory_order_relaxed); }

 private:
  const BackoffPolicy policy_;
  const Clock& clock_;
  const std::function<void()> yield_;
  TimePoint now_{};
  TimePoint idle_since_{};
  std::uint32_t pauses_ = 0;  // Since something moved.
  bool yields_now_ = false;
  int early_sleeps_ = 0;  // So many of the next waits do not yield.
  std::atomic<std::uint64_t> yields_{0};
  std::atomic<std::uint64_t> slow_yields_{0};
};

/// Between two looks of a thread that does not drive.
void relax(bool yield);

}  // namespace lightcc
