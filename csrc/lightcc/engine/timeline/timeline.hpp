// What the progress loop tells of itself, for a file that Perfetto shows
// (docs/running/timeline.md).
//
// Every hook costs one branch while no timeline is recorded, and some 100 ns while one is: it makes
// a record and puts it into the writer's queue (timeline_writer.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/control_plane.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"
#include "lightcc/engine/timeline/timeline_writer.hpp"
#include "lightcc/engine/world.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// The file of `rank` where all ranks write: "trace.json", "trace.rank1.json", ...
std::string timeline_path(const std::string& path, int rank);

/// Thread: one at a time (ProgressLoop's mutex), but for is_on().
class Timeline final : public ControlObserver {
 public:
  /// `clock` outlives it.
  explicit Timeline(const Clock& clock) : clock_(clock) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline() override { stop(); }

  /// Records into a file from now on; what was recorded into another one before ends first. Records
  /// nothing where the options leave `rank` out. Errors: of TimelineWriter::start().
  Status start(const TimelineOptions& options, int rank, int size);
  /// Ends the file, if there is one. Blocks: for the file system.
  void stop();
  /// Thread: any.
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  /// Rank `rank` is known to want a tensor.
  void ready(const Signature& tensor, std::uint32_t rank) override {
    if (is_on()) {
      record_ready(tensor, rank);
    }
  }
  /// All ranks want it.
  void announced(const Signature& tensor, const Execute& execute) override {
    if (is_on()) {
      record_announced(tensor, execute);
    }
  }
  /// It is over, and nothing was run for it here.
  void ended(std::uint32_t process_set, const std::string& name) override {
    if (is_on()) {
      record_ended(process_set, name);
    }
  }
  /// A bucket begins to run. `how` lives as long as the process; `counters`: the counters of all
  /// that was compressed so far.
  void started(const Bucket& bucket, const char* how, const CompressionCounters& counters) {
    if (is_on()) {
      record_started(bucket, how, counters);
    }
  }
  /// For a bucket that begins on a device, or on its way from one; null: nothing is recorded.
  /// `inputs`: its ready events.
  std::shared_ptr<DeviceTrace> trace(const Bucket& bucket,
                                     const char* how,
                                     std::vector<std::shared_ptr<ReadyEvent>> inputs);
  /// It is done.
  void finished(const Bucket& bucket,
                const char* how,
                TimePoint since,
                const CompressionCounters& counters) {
    if (is_on()) {
      record_finished(bucket, how, since, counters);
    }
  }
  /// Rank 0 is about to announce what is complete.
  void cycle() override {
    if (is_on()) {
      record_cycle();
    }
  }
  void world_failed(const Status& error) {
    if (is_on()) {
      record_failure(error);
    }
  }

 private:
  void record_ready(const Signature& tensor, std::uint32_t rank);
  void record_announced(const Signature& tensor, const Execute& execute);
  void record_ended(std::uint32_t process_set, const std::string& name);
  void record_started(const Bucket& bucket, const char* how, const CompressionCounters& counters);
  void record_finished(const Bucket& bucket,
                       const char* how,
                       TimePoint since,
                       const CompressionCounters& counters);
  void record_cycle();
  void record_failure(const Status& error);
  std::int64_t ns(TimePoint time) const { return (time - start_).count(); }
  std::int64_t now_ns() const { return ns(clock_.now()); }
  std::uint32_t number_of(std::uint32_t process_set, const std::string& name);
  void push(const TimelineRecord& record) { writer_->push(record); }

  const Clock& clock_;
  std::atomic<bool> on_{false};  // Says nothing of what else is here: others only ask it.
  bool marks_cycles_ = false;
  std::string path_;
  TimePoint start_;
  std::optional<std::int64_t> cycle_ns_;  // On rank 0: before others could hear of announcements.
  std::unique_ptr<TimelineWriter> writer_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  // By name, as the file has it.
  std::uint32_t last_number_ = 0;
  std::optional<CompressionCounters> compressed_;  // As far as buckets in the file tell of them.
};

}  // namespace lightcc
