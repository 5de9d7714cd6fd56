#include "lightcc_cuda/rows/gpu_clock.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

namespace lightcc::cuda {
namespace {

constexpr Duration kBetweenAnchors = std::chrono::seconds(1);
// The best of some: a thread may lose its core between call and answer.
constexpr int kTries = 4;
constexpr Duration kGoodWidth = std::chrono::microseconds(10);
// A GPU that is stuck never answers.
constexpr Duration kPatience = std::chrono::milliseconds(100);
// Resolution of the driver's times, as it says.
constexpr Duration kResolution = std::chrono::nanoseconds(500);
constexpr double kFloatSteps = 16'777'216.0;  // 2^24: a float has as many between two powers of 2.

}  // namespace

Result<Duration> time_between(const Driver& driver, EventHandle* first, EventHandle* last) {
  float milliseconds = 0.0F;
  LIGHTCC_RETURN_IF_ERROR(driver.elapsed_ms(&milliseconds, first, last));
  return Duration(std::llround(static_cast<double>(milliseconds) * 1e6));
}

Result<std::shared_ptr<const GpuClock::Anchor>> GpuClock::anchor() {
  const TimePoint now = clock_.now();
  if (now < renew_at_) {
    return anchor_;
  }
  if (!stream_.has_value()) {
    LIGHTCC_ASSIGN_OR_RETURN(Stream stream, Stream::create(driver_));
    stream_.emplace(std::move(stream));
  }
  std::shared_ptr<const Anchor> best;
  for (int tries = 0; tries < kTries && (best == nullptr || 2 * best->half_width > kGoodWidth);
       ++tries) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<const Anchor> made, try_anchor(now + kPatience));
    if (made == nullptr) {
      break;
    }
    if (best == nullptr || made->half_width < best->half_width) {
      best = made;
    }
  }
  renew_at_ = clock_.now() + kBetweenAnchors;
  if (best != nullptr) {
    LIGHTCC_RETURN_IF_ERROR(learn_drift(*best));
    anchor_ = std::move(best);
  }
  return anchor_;
}

Result<std::shared_ptr<const GpuClock::Anchor>> GpuClock::try_anchor(TimePoint deadline) {
  const TimePoint before = clock_.now();
  LIGHTCC_ASSIGN_OR_RETURN(Event event, record_event(driver_, stream_->get(), Timing::kKnown));
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool happened, has_happened(driver_, event));
    const TimePoint after = clock_.now();
    if (happened) {
      const Duration half_width = (after - before) / 2;
      return std::shared_ptr<const Anchor>(std::make_shared<Anchor>(
          Anchor{.event = std::move(event), .at = before + half_width, .half_width = half_width}));
    }
    if (after >= deadline) {
      return std::shared_ptr<const Anchor>();
    }
    std::this_thread::yield();
  }
}

// How far the last anchor would have been off by now.
Status GpuClock::learn_drift(const Anchor& next) {
  if (anchor_ == nullptr) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Duration passed,
                           time_between(driver_, anchor_->event.get(), next.event.get()));
  const Duration off = std::chrono::abs(anchor_->at + passed - next.at);
  drift_ = std::max(drift_, off - anchor_->half_width - next.half_width);
  return {};
}

Result<GpuClock::Reading> GpuClock::time_of(const Anchor& anchor, EventHandle* event) const {
  LIGHTCC_ASSIGN_OR_RETURN(const Duration passed, time_between(driver_, anchor.event.get(), event));
  const auto rounding = Duration(std::llround(static_cast<double>(passed.count()) / kFloatSteps));
  return Reading{.at = anchor.at + passed,
                 .error = anchor.half_width + kResolution + rounding + drift_};
}

}  // namespace lightcc::cuda
