#include "watchdog.hpp"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, with sigaction()
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace net_conform {
namespace {

using Clock = std::chrono::steady_clock;

struct alignas(64) Slot {
  std::atomic<bool> is_used{false};
  std::atomic<const char*> entry{nullptr};
  std::atomic<std::int64_t> until_ns{0};  ///< 0: no call.
};

std::array<Slot, 256> slots;
std::atomic<const char*> current_case{"the start"};
std::atomic<int> output_fd{STDERR_FILENO};
CallLimits limits;

/// A thread's own slot, for its life.
class SlotOwner {
 public:
  SlotOwner() {
    for (Slot& slot : slots) {
      if (!slot.is_used.exchange(true)) {
        slot_ = &slot;
        return;
      }
    }
  }
  ~SlotOwner() {
    if (slot_ != nullptr) {
      slot_->is_used = false;
    }
  }
  SlotOwner(const SlotOwner&) = delete;
  SlotOwner& operator=(const SlotOwner&) = delete;
  Slot* get() const { return slot_; }

 private:
  Slot* slot_ = nullptr;
};

thread_local SlotOwner own_slot;
thread_local const char* own_entry = nullptr;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

void append(char* line, std::size_t room, const char* text) {
  std::strncat(line, text, room - std::strlen(line) - 1);
}

/// Async-signal-safe: no stdio, no allocation.
void on_crash(int signal_number) {
  std::array<char, 256> line{"FAIL  calls.no-crash: signal "};
  const std::array<char, 3> digits{static_cast<char>('0' + signal_number / 10),
                                   static_cast<char>('0' + signal_number % 10),
                                   '\0'};
  append(line.data(), line.size(), digits.data());
  append(line.data(), line.size(), " in ");
  append(line.data(), line.size(), own_entry != nullptr ? own_entry : "no call of this thread");
  append(line.data(), line.size(), ", testing ");
  append(line.data(), line.size(), current_case.load());
  append(line.data(), line.size(), "\n");
  (void)!::write(output_fd, line.data(), std::strlen(line.data()));
  ::_exit(kExitCrashed);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

void watch() {
  while (true) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (const Slot& slot : slots) {
      const std::int64_t until = slot.until_ns.load();
      const char* entry = slot.entry.load();
      if (until != 0 && entry != nullptr && now_ns() > until) {
        ::dprintf(output_fd,
                  "FAIL  calls.return: %s does not return, testing %s\n",
                  entry,
                  current_case.load());
        ::_exit(kExitBlocked);
      }
    }
  }
}

}  // namespace

void start_watchdog(const CallLimits& call_limits, int report_to) {
  limits = call_limits;
  output_fd = report_to;
  if (!kSanitized) {
    struct sigaction action{};
    action.sa_handler = on_crash;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
      ::sigaction(number, &action, nullptr);
    }
  }
  // It looks at the calls of others for as long as the process lives, and owns nothing.
  std::thread(watch).detach();
}

void set_current_case(const char* name) {
  current_case = name;
}

CallScope::CallScope(const char* entry, bool may_block) {
  own_entry = entry;
  if (Slot* slot = own_slot.get(); slot != nullptr) {
    const auto limit = may_block ? limits.blocking : limits.ordinary;
    slot->entry = entry;
    slot->until_ns = now_ns() + std::chrono::nanoseconds(limit).count();
  }
}

CallScope::~CallScope() {
  own_entry = nullptr;
  if (Slot* slot = own_slot.get(); slot != nullptr) {
    slot->until_ns = 0;
  }
}

}  // namespace net_conform
