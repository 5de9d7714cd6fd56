#include "lightcc_cuda/rows/gpu_rows.hpp"

#include <algorithm>

#include "lightcc_cuda/staging/stream_event.hpp"

namespace lightcc::cuda {

std::unique_ptr<OpenSpan> GpuRows::begin(const TracedCall& call, StreamHandle* stream) {
  if (call.trace == nullptr || is_off_ || !call.trace->is_recording()) {
    return nullptr;
  }
  const auto open = [&]() -> Result<std::unique_ptr<OpenSpan>> {
    LIGHTCC_ASSIGN_OR_RETURN(auto anchor, clock_.anchor());
    if (anchor == nullptr) {
      return std::unique_ptr<OpenSpan>();
    }
    const TimePoint called = host_clock_.now();
    LIGHTCC_ASSIGN_OR_RETURN(Event first, record_event(driver_, stream, Timing::kKnown));
    return std::make_unique<OpenSpan>(OpenSpan{.call = call,
                                               .stream = stream,
                                               .called = called,
                                               .anchor = std::move(anchor),
                                               .first = std::move(first)});
  };
  Result<std::unique_ptr<OpenSpan>> span = open();
  if (!span.ok()) {
    turn_off(*call.trace, span.status());
    return nullptr;
  }
  return std::move(*span);
}

void GpuRows::close(OpenSpan* span) {
  if (span == nullptr) {
    return;
  }
  Result<Event> last = record_event(driver_, span->stream, Timing::kKnown);
  if (last.ok()) {
    span->last.emplace(std::move(*last));
  } else {
    turn_off(*span->call.trace, last.status());
  }
}

void GpuRows::end(std::unique_ptr<OpenSpan> span, const Status& status) {
  if (span == nullptr) {
    return;
  }
  if (!status.ok()) {
    add_failed(*span, status);
  } else if (!is_off_ && span->last.has_value()) {
    if (const Status added = add_done(*span); !added.ok()) {
      turn_off(*span->call.trace, added);
    }
  }
}

Status GpuRows::add_done(OpenSpan& span) {
  LIGHTCC_ASSIGN_OR_RETURN(const GpuClock::Reading begin,
                           clock_.time_of(*span.anchor, span.first.get()));
  LIGHTCC_ASSIGN_OR_RETURN(const GpuClock::Reading end,
                           clock_.time_of(*span.anchor, span.last->get()));
  LIGHTCC_RETURN_IF_ERROR(add_inputs(span, begin));
  span.call.trace->add(
      span_of(span, begin.at, std::max(end.at, begin.at), std::max(begin.error, end.error)));
  return {};
}

// The GPU may be broken, or not have come so far: then all that is known is when the call was made.
void GpuRows::add_failed(OpenSpan& span, const Status& status) {
  const bool has_begun = driver_.call().query_event(span.first.get()) == kSuccess;
  const auto begin = has_begun ? clock_.time_of(*span.anchor, span.first.get())
                               : Result<GpuClock::Reading>(Status(ErrorCode::kSystem, ""));
  const TimePoint now = host_clock_.now();
  DeviceSpan failed = span_of(
      span, begin.ok() ? begin->at : span.called, now, begin.ok() ? begin->error : Duration());
  failed.failure = status.message();
  span.call.trace->add(std::move(failed));
}

// From events of this GPU. They come before the operation's first one, so times are measured to it.
Status GpuRows::add_inputs(const OpenSpan& span, const GpuClock::Reading& begin) {
  std::optional<TimePoint> ready;
  for (const auto& input : span.call.trace->take_inputs(device_)) {
    for (EventHandle* const event : timed_events_of(*input, device_)) {
      LIGHTCC_ASSIGN_OR_RETURN(const Duration passed,
                               time_between(driver_, event, span.first.get()));
      const TimePoint at = begin.at - passed;
      ready = std::max(ready.value_or(at), at);
    }
  }
  if (ready.has_value()) {
    span.call.trace->add({.row = gpu_ + "inputs",
                          .device = device_,
                          .what = "ready",
                          .bytes = std::nullopt,
                          .begin = *ready,
                          .end = *ready,
                          .error = begin.error,
                          .failure = {}});
  }
  return {};
}

DeviceSpan GpuRows::span_of(OpenSpan& span, TimePoint begin, TimePoint end, Duration error) {
  return {.row = row_of(span.stream),
          .device = device_,
          .what = std::move(span.call.what),
          .bytes = span.call.bytes,
          .begin = begin,
          .end = end,
          .error = error,
          .failure = {}};
}

const std::string& GpuRows::row_of(StreamHandle* stream) {
  const auto [found, is_new] = rows_.try_emplace(stream);
  if (is_new) {
    found->second = rows_.size() == 1 ? name_ : name_ + ' ' + std::to_string(rows_.size());
  }
  return found->second;
}

void GpuRows::turn_off(DeviceTrace& trace, const Status& why) {
  if (!is_off_) {
    is_off_ = true;
    trace.warn("the timeline lacks '" + name_ + "' from now on: " + why.message());
  }
}

}  // namespace lightcc::cuda
