// Events of a GPU.
#pragma once

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

using Event = Owned<EventHandle*, &Functions::destroy_event>;

/// Whether an event knows when it happened, which costs the GPU a little.
enum class Timing : bool { kUnknown, kKnown };

// All in the current context. Errors: kSystem.

inline Result<Event> make_event(const Driver& driver, Timing timing) {
  const unsigned flags = timing == Timing::kKnown ? kEventWithTiming : kEventWithoutTiming;
  EventHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.create_event(&handle, flags));
  return Event(driver, handle);
}

/// A new one, behind what `stream` has been given so far.
inline Result<Event> record_event(const Driver& driver, StreamHandle* stream, Timing timing) {
  LIGHTCC_ASSIGN_OR_RETURN(Event event, make_event(driver, timing));
  LIGHTCC_RETURN_IF_ERROR(driver.record_event(event.get(), stream));
  return event;
}

/// Whether all has ended that came before its record.
inline Result<bool> has_happened(const Driver& driver, const Event& event) {
  const Code code = driver.call().query_event(event.get());
  if (code == kErrorNotReady) {
    return false;
  }
  LIGHTCC_RETURN_IF_ERROR(driver.check(code, "cuEventQuery"));
  return true;
}

}  // namespace lightcc::cuda
