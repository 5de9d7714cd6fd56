#include "runtime/background_driver.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "runtime/clock.hpp"
#include "runtime/engine.hpp"
#include "runtime/stack.hpp"
#include "runtime/stat_publisher.hpp"
#include "sync/mutex.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace harp {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

BackgroundDriver::BackgroundDriver(const BackgroundDriverOptions& options) : options_(options) {
  // A signal is for the application's threads: none may end up in this one.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    set_up_thread();
    run();
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BackgroundDriver::~BackgroundDriver() {
  is_ending_.store(true, std::memory_order_release);
  sleeper_.wake();
  thread_.join();
}

Engine& BackgroundDriver::add(std::unique_ptr<Stack> stack,
                              std::unique_ptr<StatPublisher> publisher) {
  auto engine =
      std::make_unique<Engine>(std::move(stack), options_.mode, sleeper_, std::move(publisher));
  Engine& added = *engine;
  {
    const MutexLock lock(mutex_);
    engines_.push_back(std::move(engine));
    engine_count_.store(engines_.size(), std::memory_order_release);
  }
  sleeper_.wake();
  return added;
}

void BackgroundDriver::set_up_thread() const {
  ::pthread_setname_np(::pthread_self(), "harp-driver");
  // Timers of sessions are finer than the 50 us by which the kernel may delay a sleeper.
  (void)::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  if (options_.core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<std::size_t>(*options_.core), &cores);
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof(cores), &cores);
  }
}

void BackgroundDriver::run() {
  Time last_work = clock_now();
  while (!is_ending_.load(std::memory_order_acquire)) {
    if (mine_.size() != engine_count_.load(std::memory_order_acquire)) {
      const MutexLock lock(mutex_);
      mine_.clear();
      for (const auto& engine : engines_) {
        mine_.push_back(engine.get());
      }
    }
    const Time now = clock_now();
    if (drive_all()) {
      last_work = now;
    } else if (shall_spin(last_work, now)) {
      pause_briefly();
    } else {
      sleep();
    }
  }
}

bool BackgroundDriver::drive_all() {
  bool worked = false;
  for (Engine* const engine : mine_) {
    worked = engine->keep(clock_now()) || worked;
  }
  return worked;
}

bool BackgroundDriver::shall_spin(Time last_work, Time now) const {
  if (!std::ranges::any_of(mine_, &Engine::is_alive)) {
    return false;
  }
  return options_.mode == RunMode::kThread ||
         (options_.mode == RunMode::kAdaptive && now - last_work < options_.spin);
}

void BackgroundDriver::sleep() {
  std::vector<int> descriptors;
  Time wake_at = kNever;
  for (Engine* const engine : mine_) {
    const Engine::Plan plan = engine->plan(clock_now());
    wake_at = std::min(wake_at, plan.wake_at);
    if (plan.descriptor >= 0) {
      descriptors.push_back(plan.descriptor);
    }
  }
  if (wake_at > clock_now()) {
    sleeper_.sleep(descriptors, wake_at);
  }
}

}  // namespace harp
