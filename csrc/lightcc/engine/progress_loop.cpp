#include "lightcc/engine/progress_loop.hpp"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "lightcc/engine/completion.hpp"

namespace lightcc {
namespace {

// How often a waiting thread asks whether it was interrupted.
constexpr Duration kInterruptInterval = std::chrono::milliseconds(100);
// How often the own thread of a world that is over looks whether it may end.
constexpr Duration kOverInterval = std::chrono::milliseconds(500);
// How often one that waits while another one drives looks what devices have finished.
constexpr Duration kDeviceInterval = std::chrono::milliseconds(1);

const HandleState& never() {
  static const HandleState kNever;
  return kNever;
}

}  // namespace

ProgressLoop::ProgressLoop(Driven& core,
                           OperationTable& operations,
                           const Clock& clock,
                           const BackoffPolicy& policy)
    : core_(core),
      operations_(operations),
      clock_(clock),
      backoff_(policy, clock, [] { relax(true); }) {}

Status ProgressLoop::start_thread() {
  completion_threads_ = std::make_unique<CompletionThreads>();
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& error) {
    return make_system_error(ErrorCode::kSystem,
                             error.code().value(),
                             "cannot start the engine's thread (address space for its stack, or "
                             "the number of processes, is limited)");
  }
  return {};
}

void ProgressLoop::stop_thread() {
  stop_.store(true, std::memory_order_release);
  core_.waker().wake();
  thread_->join();
  thread_.reset();
  run_completions();
  while (completing_threads_.load(std::memory_order_acquire) > 0) {
    operations_.wait_for_change(never(), kInterruptInterval);
  }
  completion_threads_.reset();
}

// Runs the completions of what is done. Not while this thread drives.
void ProgressLoop::run_completions() {
  if (!operations_.has_callbacks()) {
    return;
  }
  completing_threads_.fetch_add(1, std::memory_order_acq_rel);
  while (const auto completion = operations_.take_callback()) {
    run_completion(completion);
  }
  completing_threads_.fetch_sub(1, std::memory_order_acq_rel);
  operations_.notify();  // stop_thread() may wait for it.
}

void ProgressLoop::hand_over_completions() {
  while (operations_.has_callbacks()) {
    auto completion = operations_.take_callback();
    if (completion == nullptr) {
      return;  // Another thread was quicker.
    }
    completing_threads_.fetch_add(1, std::memory_order_acq_rel);
    completion_threads_->run([this, completion = std::move(completion)] {
      run_completion(completion);
      completing_threads_.fetch_sub(1, std::memory_order_acq_rel);
      operations_.notify();
    });
  }
}

void ProgressLoop::help(const std::function<bool()>& done, const HandleState* state) {
  helpers_.fetch_add(1, std::memory_order_seq_cst);
  const bool drove = try_to_drive(done);
  helpers_.fetch_sub(1, std::memory_order_seq_cst);
  if (drove) {
    operations_.notify();  // Another waiting thread may take over.
    if (completion_threads_ != nullptr) {
      hand_over_completions();  // One that waits would hold up what this thread waits for.
    } else {
      run_completions();
    }
  } else if (!done()) {
    operations_.wait_for_change(state != nullptr ? *state : never(),
                                state != nullptr ? kInterruptInterval : kDeviceInterval);
  }
}

bool ProgressLoop::try_to_drive(const std::function<bool()>& done) {
  for (int tries = 0; tries < 1000 && !done(); ++tries) {
    if (mutex_.try_lock()) {
      if (backoff_.policy().shuts_gate) {
        core_.waker().shut_gate();
      }
      drive(done);
      settle();
      core_.waker().open_gate();
      mutex_.unlock();
      return true;
    }
    relax(tries % 16 == 15);
  }
  return false;
}

// hot
void ProgressLoop::drive(const std::function<bool()>& done) {
  std::optional<TimePoint> until;  // Counted from the first look that finds nothing.
  core_.waker().cancel_sleep();
  backoff_.reset();
  while (!done() && !operations_.has_callbacks()) {
    if (core_.step()) {
      backoff_.reset();
      continue;
    }
    const bool looks_on = backoff_.keep_looking(backoff_.policy().foreground);
    if (!until.has_value()) {
      until = backoff_.now() + kInterruptInterval;
    }
    if (backoff_.now() >= *until) {
      return;
    }
    if (!looks_on) {
      rest_until(*until);
      backoff_.reset();
    }
  }
}

void ProgressLoop::rest_until(TimePoint until) {
  if (core_.prepare_to_sleep() && !operations_.has_callbacks()) {
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    core_.waker().wait(std::min<Duration>(core_.time_to_look(), until - clock_.now()));
    core_.note_wakeup();
  }
  core_.waker().cancel_sleep();
}

// Leaves the loop without a driver: from now on peers ring. What still moves is for the own
// thread.
void ProgressLoop::settle() {
  if (!core_.prepare_to_sleep()) {
    core_.waker().wake();
  }
}

bool ProgressLoop::is_wanted_elsewhere() const {
  return helpers_.load(std::memory_order_seq_cst) > 0 || stop_.load(std::memory_order_acquire);
}

void ProgressLoop::run() {
  (void)::pthread_setname_np(::pthread_self(), "lightcc");
  while (!stop_.load(std::memory_order_acquire)) {
    mutex_.lock();
    core_.note_wakeup();
    core_.waker().cancel_sleep();
    drive_in_background();
    const bool quiet = !is_wanted_elsewhere() && core_.prepare_to_sleep();
    const Duration timeout = core_.time_to_look();
    mutex_.unlock();
    hand_over_completions();
    if (!quiet) {
      relax(true);  // To the thread that wants to drive, or at once again.
      continue;
    }
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    if (core_.over()) {
      core_.waker().wait_for_bell(kOverInterval);
    } else {
      (void)core_.waker().wait_at_gate(timeout);
    }
  }
}

// hot
void ProgressLoop::drive_in_background() {
  backoff_.reset();
  while (!is_wanted_elsewhere() && !operations_.has_callbacks()) {
    if (core_.step()) {
      backoff_.reset();
    } else if (!core_.busy() || !backoff_.keep_looking(backoff_.policy().background)) {
      return;
    }
  }
}

}  // namespace lightcc
