// Spans of devices on their way to the thread that writes a timeline.
//
// Threads that call drivers add spans, and the writing thread takes them when it looks. The queue
// is bounded: what does not fit is lost, counted, and missed in the file. A span is added before
// its operation is known to have ended. So what has ended before a timeline does is in its file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"

namespace lightcc {

/// A bucket as rows name it.
struct TracedBucket {
  std::string name;    ///< As on its lane: "NCCL_ALLREDUCE".
  std::string tensor;  ///< The first one.
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  ///< Its announcement's.
};

/// What is taken out of the queue.
struct DeviceRecord {
  DeviceSpan span;
  std::shared_ptr<const TracedBucket> bucket;
};

/// Thread: any.
class DeviceRows {
 public:
  explicit DeviceRows(std::size_t capacity = kCapacity) : capacity_(capacity) {}
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;
  ~DeviceRows() = default;

  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }
  void add(DeviceRecord record) LIGHTCC_EXCLUDES(mutex_);

  struct Taken {
    std::vector<DeviceRecord> records;
    std::uint64_t lost = 0;  ///< There was no room for them since the last call.
  };
  Taken take() LIGHTCC_EXCLUDES(mutex_);
  /// Takes in nothing more.
  void close() LIGHTCC_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kCapacity = std::size_t{1} << 14;

  const std::size_t capacity_;
  // Spares work for nothing. Whoever adds asks again, under the mutex.
  std::atomic<bool> is_open_{true};
  Mutex mutex_;
  Taken queued_ LIGHTCC_GUARDED_BY(mutex_);
};

/// Adds what devices do for one bucket to `rows`. `inputs`: its ready events.
std::shared_ptr<DeviceTrace> make_device_trace(std::shared_ptr<DeviceRows> rows,
                                               TracedBucket bucket,
                                               std::vector<std::shared_ptr<ReadyEvent>> inputs);

}  // namespace lightcc
