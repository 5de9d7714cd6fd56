// Writes a timeline's records to its file, by a thread of its own.
//
// The progress loop puts records of fixed size into a bounded queue and goes on: it never waits for
// the file, nor wakes the thread but when the queue is half full. The thread looks 50 times a
// second and sleeps otherwise. After each look the file is well-formed, also if this process is
// killed then. A record for which there is no room is lost, counted, and missed in the file.
//
// Threads of devices have a queue of their own (device_rows.hpp), with a mutex, as they are many.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/engine/timeline/device_row_encoder.hpp"
#include "lightcc/engine/timeline/device_rows.hpp"
#include "lightcc/engine/timeline/timeline_encoder.hpp"

namespace lightcc {

class TimelineWriter {
 public:
  /// Creates or empties the file and starts the thread. `capacity` is a power of 2. Errors:
  /// kInvalidArgument names the path that cannot be written; kSystem.
  static Result<std::unique_ptr<TimelineWriter>> start(const std::string& path,
                                                       const TimelineOrigin& origin,
                                                       std::size_t capacity = kCapacity);
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;
  /// Writes what is queued, closes the file and the rows. Blocks: for the file system.
  ~TimelineWriter();

  /// Thread of push() and define(): one at a time.
  void push(const TimelineRecord& record);
  /// Before the first record with that name.
  void define(std::uint32_t name, std::string text) LIGHTCC_EXCLUDES(mutex_);
  /// Has what is queued written soon.
  void hurry() LIGHTCC_EXCLUDES(mutex_);
  /// Where devices say what they did. It outlives the writer.
  const std::shared_ptr<DeviceRows>& device_rows() const { return device_rows_; }
  /// Records for which there was no room.
  std::uint64_t lost() const { return lost_; }

 private:
  static constexpr std::size_t kCapacity = std::size_t{1} << 15;

  TimelineWriter(std::string path, UniqueFd file, std::size_t capacity, TimePoint start)
      : path_(std::move(path)),
        file_(std::move(file)),
        queue_(capacity),
        device_row_encoder_(start) {}

  void run() LIGHTCC_EXCLUDES(mutex_);
  void write_queued() LIGHTCC_EXCLUDES(mutex_);
  void append(std::string& text);
  bool write_at(std::string_view text, std::int64_t offset) const;
  bool try_push(const TimelineRecord& record);

  std::string path_;
  UniqueFd file_;
  std::vector<TimelineRecord> queue_;
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> taken_{0};
  std::uint64_t lost_ = 0;    // The pushing thread counts them.
  std::uint64_t unsaid_ = 0;  // No record tells of so many of them yet.
  const std::shared_ptr<DeviceRows> device_rows_ = std::make_shared<DeviceRows>();
  TimelineEncoder encoder_;  // The writing thread's, as is what follows.
  DeviceRowEncoder device_row_encoder_;
  std::int64_t end_ = 0;  // Where kTimelineEnd begins in the file.
  std::int64_t last_at_ns_ = 0;
  bool is_writable_ = true;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::uint32_t, std::string>> names_ LIGHTCC_GUARDED_BY(mutex_);
  bool hurry_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool stop_ LIGHTCC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lightcc
