// When an event of a GPU happened, in the host's time.
//
// The driver says how long after another event one happened. So now and then an event is recorded
// on a stream that does nothing else. The host asks until it has happened: that was between the
// call and the answer. The middle is taken for its time, and half of that for what it may be wrong
// by. Such an anchor is renewed about every second. The clocks run apart meanwhile, and the
// driver's times are a float of milliseconds.
#pragma once

#include <memory>
#include <optional>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/event.hpp"

namespace lightcc::cuda {

/// From `first` until `last`, which have happened, in this order. Errors: kSystem.
Result<Duration> time_between(const Driver& driver, EventHandle* first, EventHandle* last);

/// Thread: one, in the context of the GPU.
class GpuClock {
 public:
  /// Both outlive it.
  GpuClock(const Driver& driver, const Clock& clock) : driver_(driver), clock_(clock) {}

  /// An event of which the host's time is known.
  struct Anchor {
    Event event;
    TimePoint at;
    Duration half_width;  ///< So much before or after at most.
  };
  /// The one for events that are recorded now. Null: the GPU does not answer at the moment. Errors:
  /// kSystem. Blocks: about every second, for some answers of the GPU, and 0.1 seconds at most.
  Result<std::shared_ptr<const Anchor>> anchor();

  struct Reading {
    TimePoint at;
    Duration error;  ///< So much before or after at most.
  };
  /// When `event` happened, which was recorded after the anchor. Errors: kSystem.
  Result<Reading> time_of(const Anchor& anchor, EventHandle* event) const;

 private:
  /// Null: it did not happen in time.
  Result<std::shared_ptr<const Anchor>> try_anchor(TimePoint deadline);
  Status learn_drift(const Anchor& next);

  const Driver& driver_;
  const Clock& clock_;
  std::optional<Stream> stream_;  // Made with the first anchor.
  std::shared_ptr<const Anchor> anchor_;
  TimePoint renew_at_;
  Duration drift_{};  // The most from one anchor to the next, beyond what they may be wrong by.
};

}  // namespace lightcc::cuda
