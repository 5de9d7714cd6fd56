#include "watchdog.hpp"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, with sigaction()
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <tuple>

namespace net_conform {
namespace {

using Clock = std::chrono::steady_clock;

/// What a thread is doing. Its owner only stores, and reads no clock: harp-perf times such calls.
struct alignas(64) Slot {
  std::atomic<bool> is_used{false};
  std::atomic<const char*> entry{nullptr};  ///< Null: no call.
  std::atomic<bool> may_block{false};
  std::atomic<std::uint64_t> calls{0};
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

void append(char* line, std::size_t room, const char* text) {
  std::strncat(line, text, room - std::strlen(line) - 1);
}

/// Async-signal-safe: no stdio, no allocation. Several threads may crash at once, as those do that
/// a library leaves behind: the first one reports, the others wait for the end of the process. A
/// thread that crashes in here is killed by the kernel, as its signal is blocked.
void on_crash(int signal_number) {
  static std::atomic_flag is_reported;
  while (is_reported.test_and_set()) {
    ::pause();
  }
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
  struct Seen {
    std::uint64_t calls = 0;
    Clock::time_point since;
  };
  std::array<Seen, std::tuple_size_v<decltype(slots)>> seen{};
  while (true) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto now = Clock::now();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::uint64_t calls = slots[i].calls.load(std::memory_order_acquire);
      const char* const entry = slots[i].entry.load(std::memory_order_acquire);
      if (entry == nullptr || calls != seen[i].calls) {
        seen[i] = {.calls = calls, .since = now};
      } else if (now - seen[i].since > (slots[i].may_block.load(std::memory_order_relaxed)
                                            ? limits.blocking
                                            : limits.ordinary)) {
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
    const std::uint64_t calls = slot->calls.load(std::memory_order_relaxed) + 1;
    slot->may_block.store(may_block, std::memory_order_relaxed);
    slot->entry.store(entry, std::memory_order_release);
    slot->calls.store(calls, std::memory_order_release);
  }
}

CallScope::~CallScope() {
  own_entry = nullptr;
  if (Slot* slot = own_slot.get(); slot != nullptr) {
    slot->entry.store(nullptr, std::memory_order_release);
  }
}

}  // namespace net_conform
