// Catches what a plugin may do to the tool itself: not return from a call, or crash in it.
//
// A thread that hangs in foreign code cannot be stopped, so both end the process: with the line of
// the rule, and with a status of their own, by which a parent knows what its peer died of.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace net_conform {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitBlocked = 3;
inline constexpr int kExitCrashed = 4;

/// How long a call may take: one that does not block, and one that may.
struct CallLimits {
  std::chrono::milliseconds ordinary{5000};
  std::chrono::milliseconds blocking{120000};
};

/// Starts the thread and, without a sanitizer, the signal handlers. `report_to`: where the line
/// goes.
void start_watchdog(const CallLimits& call_limits, int report_to);

/// What is being tested, for the lines of a failure. A literal.
void set_current_case(const char* name);

/// While it lives, this thread is inside `entry` of the plugin. At most one per thread.
class CallScope {
 public:
  /// `may_block`: which limit holds.
  CallScope(const char* entry, bool may_block);
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  ~CallScope();
};

}  // namespace net_conform
