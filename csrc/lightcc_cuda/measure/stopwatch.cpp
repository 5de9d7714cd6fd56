#include "lightcc_cuda/measure/stopwatch.hpp"

#include <utility>

namespace lightcc::cuda {
namespace {

// With the launches behind them, they fit into a driver's queue.
constexpr std::size_t kMaxCopies = 256;

}  // namespace

Result<double> seconds_between(const Driver& driver, const Event& first, const Event& last) {
  LIGHTCC_ASSIGN_OR_RETURN(const double milliseconds,
                           milliseconds_between(driver, first.get(), last.get()));
  return milliseconds * 1e-3;
}

Result<Stopwatch> Stopwatch::make(const Driver& driver,
                                  const Stream& stream,
                                  std::size_t copied_bytes) {
  LIGHTCC_ASSIGN_OR_RETURN(Event first, make_event(driver, Timing::kKnown));
  LIGHTCC_ASSIGN_OR_RETURN(Event last, make_event(driver, Timing::kKnown));
  LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory copied, allocate_device_memory(driver, 2 * copied_bytes));
  return Stopwatch(
      driver, stream, std::move(first), std::move(last), std::move(copied), copied_bytes);
}

Result<Reading> Stopwatch::time(const std::function<Status()>& prepare,
                                const std::function<Status()>& enqueue) {
  Result<Reading> reading = try_time(prepare, enqueue);
  if (!reading.ok()) {
    // What was queued before the failure uses memory that its owner may free.
    static_cast<void>(stream_->wait());
  }
  return reading;
}

Result<Reading> Stopwatch::try_time(const std::function<Status()>& prepare,
                                    const std::function<Status()>& enqueue) {
  const Functions& call = driver_->call();
  while (true) {
    for (std::size_t i = 0; i < copies_; ++i) {
      LIGHTCC_RETURN_IF_ERROR(driver_->check(
          call.copy_on_device(
              copied_.get() + copied_bytes_, copied_.get(), copied_bytes_, stream_->get()),
          "cuMemcpyDtoDAsync"));
    }
    LIGHTCC_RETURN_IF_ERROR(prepare());
    LIGHTCC_RETURN_IF_ERROR(
        driver_->check(call.record_event(first_.get(), stream_->get()), "cuEventRecord"));
    LIGHTCC_RETURN_IF_ERROR(enqueue());
    LIGHTCC_RETURN_IF_ERROR(
        driver_->check(call.record_event(last_.get(), stream_->get()), "cuEventRecord"));
    const Code code = call.query_event(first_.get());
    const bool has_gaps = code != kErrorNotReady;
    if (has_gaps) {
      LIGHTCC_RETURN_IF_ERROR(driver_->check(code, "cuEventQuery"));
    }
    LIGHTCC_RETURN_IF_ERROR(stream_->wait());
    if (!has_gaps || copies_ >= kMaxCopies) {
      LIGHTCC_ASSIGN_OR_RETURN(const double seconds, seconds_between(*driver_, first_, last_));
      return Reading{.seconds = seconds, .has_gaps = has_gaps};
    }
    copies_ *= 2;
  }
}

}  // namespace lightcc::cuda
