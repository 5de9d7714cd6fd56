// Rows of devices in a timeline, as text (timeline_encoder.hpp).
//
// Each row is a "process" of the trace, as a lane is. Its slices have the names of buckets, and say
// which one it was. A row says how exact its times are before the first one, and again where later
// ones are less exact.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lightcc/base/clock.hpp"
#include "lightcc/engine/timeline/device_rows.hpp"

namespace lightcc {

/// Thread: one at a time.
class DeviceRowEncoder {
 public:
  /// `start`: the timeline's.
  explicit DeviceRowEncoder(TimePoint start) : start_(start) {}

  /// Appends events to `out`, each preceded by a comma.
  void encode(const DeviceRows::Taken& taken, std::string& out);

 private:
  struct Row {
    std::uint32_t pid = 0;
    Duration error{-1};        // As said.
    std::int64_t last_ns = 0;  // Until when it is taken.
  };

  void encode(const DeviceRecord& record, std::string& out);
  Row& row_of(const DeviceSpan& span, std::string& out);
  std::int64_t ns(TimePoint time) const { return (time - start_).count(); }

  TimePoint start_;
  std::map<std::string, Row> rows_;
};

}  // namespace lightcc
