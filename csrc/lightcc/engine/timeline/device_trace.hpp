// What devices do for buckets, as they tell a timeline of it.
//
// While a timeline is recorded, each bucket that runs on a device, or is copied to one and back,
// has a DeviceTrace. Whoever starts something for the bucket finds it, and takes it along to the
// thread that calls the driver. That one adds a span when the device has done it. Without a
// timeline nobody finds one, which costs a branch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/export.hpp"
#include "lightcc/engine/operation.hpp"

namespace lightcc {

/// Something on a row of a device. Rows of one name are one row, and what is on it does not
/// overlap.
struct DeviceSpan {
  std::string row;  ///< "GPU 0 NCCL".
  std::int32_t device = 0;
  std::string what;  ///< The call: "ncclAllReduce".
  /// Those that it moved, where that is known.
  std::optional<std::uint64_t> bytes;
  TimePoint begin;
  TimePoint end;        ///< As `begin`: a moment.
  Duration error{};     ///< The times are wrong by so much at most.
  std::string failure;  ///< Why the device did not do it; empty: it did.
};

/// What devices did for one bucket. Thread: any. Blocks: never.
class DeviceTrace {
 public:
  DeviceTrace() = default;
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;
  virtual ~DeviceTrace() = default;

  /// Whether the timeline still goes on.
  virtual bool is_recording() const = 0;
  /// Forgets it where the timeline has ended.
  virtual void add(DeviceSpan span) = 0;
  /// When the bucket's inputs were ready; once for each device, and then nothing.
  virtual std::vector<std::shared_ptr<ReadyEvent>> take_inputs(std::int32_t device) = 0;
  /// Logs why a row ends, or is not there.
  virtual void warn(const std::string& text) = 0;
};

/// That of the bucket that this thread moves on; null: there is no timeline, or no device.
LIGHTCC_EXPORT std::shared_ptr<DeviceTrace> current_device_trace();

/// While it is there, the thread moves a bucket on.
class DeviceTraceScope {
 public:
  /// `trace` outlives it. Null: nothing is traced.
  explicit DeviceTraceScope(const std::shared_ptr<DeviceTrace>& trace) : is_set_(trace != nullptr) {
    if (is_set_) {
      set(&trace);
    }
  }
  DeviceTraceScope(const DeviceTraceScope&) = delete;
  DeviceTraceScope& operator=(const DeviceTraceScope&) = delete;
  ~DeviceTraceScope() {
    if (is_set_) {
      set(nullptr);
    }
  }

 private:
  static void set(const std::shared_ptr<DeviceTrace>* trace);

  bool is_set_;
};

}  // namespace lightcc
