// When a device has finished an operation that the host is done with.
//
// An operation on a device's memory is enqueued when the device has been given all of it: its
// result is right for a stream that waits for its end. It is finished when the device has done it:
// only then may the host read the result, or free and reuse memory that the operation touches.
#pragma once

#include <cstdint>

#include "lightcc/base/status.hpp"

namespace lightcc {

/// The end of an operation that has been enqueued. Operations of one bucket share it. Thread: any.
class DeviceEnd {
 public:
  DeviceEnd() = default;
  DeviceEnd(const DeviceEnd&) = delete;
  DeviceEnd& operator=(const DeviceEnd&) = delete;
  virtual ~DeviceEnd() = default;

  /// Has what `stream` is given from now on wait for the end, on the device. `stream` is the
  /// device's handle of it. False: it cannot wait, as it is being captured into a graph. Errors:
  /// those that the operation failed with; kSystem. Blocks: where the stream's queue is full.
  virtual Result<bool> order(std::uintptr_t stream) = 0;
  /// Whether it is finished. Errors: those that the operation failed with; the world's follows.
  virtual Result<bool> is_finished() = 0;
  /// Whether the device may still use memory of the operation: until it is finished, and after a
  /// failure until it has been aborted.
  virtual bool uses_memory() = 0;
};

}  // namespace lightcc
