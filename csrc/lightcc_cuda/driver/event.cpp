#include "lightcc_cuda/driver/event.hpp"

namespace lightcc::cuda {

Result<Event> make_event(const Driver& driver, Timing timing) {
  const unsigned flags = timing == Timing::kKnown ? kEventWithTiming : kEventWithoutTiming;
  EventHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(driver.create_event(&handle, flags));
  return Event(driver, handle);
}

Result<Event> record_event(const Driver& driver, StreamHandle* stream, Timing timing) {
  LIGHTCC_ASSIGN_OR_RETURN(Event event, make_event(driver, timing));
  LIGHTCC_RETURN_IF_ERROR(driver.record_event(event.get(), stream));
  return event;
}

Result<bool> has_happened(const Driver& driver, const Event& event) {
  const Code code = driver.call().query_event(event.get());
  if (code == kErrorNotReady) {
    return false;
  }
  LIGHTCC_RETURN_IF_ERROR(driver.check(code, "cuEventQuery"));
  return true;
}

}  // namespace lightcc::cuda
