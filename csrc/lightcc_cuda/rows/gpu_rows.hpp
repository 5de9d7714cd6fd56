// What the streams of one thread do for buckets, as rows of a timeline: each operation lies between
// two events of its stream, which know their time.
//
// Only what a DeviceTrace came with is recorded, and nothing fails because of that. Where the
// driver does not say the time, the thread's rows end with a warning. An operation that failed ends
// when the host noticed that, and says so.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"

#include "lightcc_cuda/rows/gpu_clock.hpp"

namespace lightcc::cuda {

/// What is to be on a row, from the thread that drives to the one that calls.
struct TracedCall {
  std::shared_ptr<DeviceTrace> trace;  ///< Null: nothing.
  std::string what;
  std::optional<std::uint64_t> bytes{};  ///< As of DeviceSpan.
};

/// A call under way.
struct OpenSpan {
  TracedCall call;
  StreamHandle* stream;
  TimePoint called;  ///< By the host.
  std::shared_ptr<const GpuClock::Anchor> anchor;
  Event first;
  std::optional<Event> last{};  ///< Once all is on the stream.
};

/// Thread: one, in the context of the GPU.
class GpuRows {
 public:
  /// "GPU 0 NCCL", and for further streams "GPU 0 NCCL 2". The driver outlives it.
  GpuRows(const Driver& driver, int device, const std::string& name)
      : driver_(driver),
        device_(device),
        gpu_("GPU " + std::to_string(device) + ' '),
        name_(gpu_ + name),
        clock_(driver, host_clock_) {}

  /// Before the call. Null: nothing is recorded.
  std::unique_ptr<OpenSpan> begin(const TracedCall& call, StreamHandle* stream);
  /// When all that belongs to the call is on the stream. `span` may be null, as below.
  void close(OpenSpan* span);
  /// When the GPU has done it, or it failed.
  void end(std::unique_ptr<OpenSpan> span, const Status& status);

 private:
  Status add_done(OpenSpan& span);
  void add_failed(OpenSpan& span, const Status& status);
  /// When the inputs of the bucket were ready, if that is not said yet and they know it.
  Status add_inputs(const OpenSpan& span, const GpuClock::Reading& begin);
  const std::string& row_of(StreamHandle* stream);
  DeviceSpan span_of(OpenSpan& span, TimePoint begin, TimePoint end, Duration error);
  void turn_off(DeviceTrace& trace, const Status& why);

  const Driver& driver_;
  const int device_;
  const std::string gpu_;
  const std::string name_;
  const Clock& host_clock_ = Clock::system();
  GpuClock clock_;
  std::map<StreamHandle*, std::string> rows_;
  bool is_off_ = false;
};

}  // namespace lightcc::cuda
