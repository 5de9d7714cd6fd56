#include "runtime/engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/time.hpp"
#include "runtime/clock.hpp"

namespace harp {
namespace {

/// Callers that have not polled for so long do not count as driving an engine.
constexpr Duration kAbsence = std::chrono::milliseconds(1);

/// Between two publications of the counters; after one that took long, a hundred times as long. It
/// may only have waited for a core, so that the limit is the next one.
constexpr Duration kPublishInterval = std::chrono::milliseconds(100);
constexpr int kMinShareOfPublishing = 100;
/// Where nothing happens: so that readers see that this process lives.
constexpr Duration kIdlePublishInterval = std::chrono::seconds(1);

std::uint64_t work_of(const Stack& stack) {
  return stack.stats().turns - stack.stats().idle_turns;
}

}  // namespace

void Engine::drive() {
  const Time now = clock_now();
  if (mode_ == RunMode::kInline && driver_lock_.try_take()) {
    end_turn(now);
  }
  tell_driver(now);
}

bool Engine::end_turn(Time now) {
  const bool worked = stack_->turn(now);
  if (now >= publish_at_) {
    publish();
  }
  is_alive_.store(stack_->session_count() > 0, std::memory_order_relaxed);
  driver_lock_.give_back();
  return worked;
}

void Engine::publish() {
  const Time begun = clock_now();
  publisher_->publish(*stack_, begun);
  const Time now = clock_now();
  publish_at_ =
      now + std::clamp<Duration>(
                kMinShareOfPublishing * (now - begun), kPublishInterval, kIdlePublishInterval);
  published_work_ = work_of(*stack_);
}

/// When a turn is needed for the sake of the counters.
Time Engine::publish_by() const {
  const bool is_update = publish_at_ == kNever || work_of(*stack_) != published_work_;
  return is_update ? publish_at_ : publish_at_ + kIdlePublishInterval;
}

void Engine::tell_driver(Time now) {
  if (mode_ == RunMode::kInline) {
    driven_at_.store(now, std::memory_order_seq_cst);
  }
  if (is_watched_.load(std::memory_order_seq_cst) &&
      is_watched_.exchange(false, std::memory_order_seq_cst)) {
    driver_.wake();
  }
}

bool Engine::is_driven(Time now) const {
  return mode_ == RunMode::kInline && now - driven_at_.load(std::memory_order_seq_cst) < kAbsence;
}

bool Engine::keep(Time now) {
  is_watched_.store(false, std::memory_order_relaxed);
  return !is_driven(now) && driver_lock_.try_take() && end_turn(now);
}

Engine::Plan Engine::plan(Time now) {
  is_watched_.store(true, std::memory_order_seq_cst);
  if (is_driven(now) || !driver_lock_.try_take()) {
    is_watched_.store(false, std::memory_order_relaxed);
    return {.wake_at = now + kAbsence};
  }
  Plan plan{.wake_at = std::min(stack_->next_deadline(), publish_by()),
            .descriptor = stack_->datapath().descriptor()};
  if (stack_->doorbells().any() || !stack_->datapath().prepare_to_wait()) {
    plan.wake_at = now;
  }
  driver_lock_.give_back();
  return plan;
}

}  // namespace harp
