#include "lightcc/transport/plugin/plugin_loop.hpp"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lightcc {
namespace {

constexpr Duration kShortest = std::chrono::microseconds(20);
constexpr Duration kLongest = std::chrono::milliseconds(1);
constexpr int kPartOfWait = 8;
// More than that between two polls was not waiting, but something else.
constexpr Duration kMaxAttended = std::chrono::seconds(1);

}  // namespace

Result<std::shared_ptr<PluginLoop>> PluginLoop::make(const Clock& clock) {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer.valid()) {
    return make_system_error(
        ErrorCode::kSystem, errno, "net plugin transport: no timer to wait on");
  }
  return std::make_shared<PluginLoop>(std::move(timer), clock);
}

void PluginLoop::join(PluginSink& sink) {
  sinks_.push_back(&sink);
}

void PluginLoop::leave(PluginSink& sink) {
  std::erase(sinks_, &sink);
}

// A new setting also takes back an expiry that nobody has read.
void PluginLoop::arm(TimePoint now, Duration interval) {
  itimerspec spec{};
  spec.it_value.tv_nsec = static_cast<long>(interval.count());
  (void)::timerfd_settime(timer_.get(), 0, &spec, nullptr);  // Fails for bad arguments only.
  is_armed_ = true;
  due_ = now + interval;
}

void PluginLoop::disarm() {
  if (!is_armed_) {
    return;
  }
  const itimerspec never{};
  (void)::timerfd_settime(timer_.get(), 0, &never, nullptr);
  is_armed_ = false;
}

void PluginLoop::expect_work() {
  if (!is_at_rest_ && was_active_) {
    return;
  }
  const TimePoint now = clock_.now();
  is_at_rest_ = false;
  was_active_ = true;
  polled_ = now;
  moved_ = now;
}

// hot
bool PluginLoop::poll() {
  bool is_active = false;
  bool moved = false;
  for (PluginSink* const sink : sinks_) {
    if (sink->is_active()) {
      moved = sink->pump() || moved;
      is_active = sink->is_active() || is_active;
    }
  }
  const bool was_active = std::exchange(was_active_, is_active);
  if (!is_active) {
    if (!was_active && !is_at_rest_) {
      std::ranges::for_each(sinks_, &PluginSink::rest);
      is_at_rest_ = true;
      disarm();
    }
    return moved;
  }
  const TimePoint now = clock_.now();
  const bool was_at_rest = std::exchange(is_at_rest_, false);
  if (!was_at_rest) {
    attended_ += std::clamp(now - polled_, Duration(0), kMaxAttended);
  }
  polled_ = now;
  if (moved || was_at_rest) {
    moved_ = now;
  }
  if (now >= due_) {
    disarm();
  }
  return moved;
}

void PluginLoop::prepare_to_wait() {
  if (is_at_rest_) {
    return;
  }
  const TimePoint now = clock_.now();
  const Duration interval = std::clamp((now - moved_) / kPartOfWait, kShortest, kLongest);
  if (!is_armed_ || now >= due_ || due_ - now > 2 * interval) {
    arm(now, interval);
  }
}

}  // namespace lightcc
