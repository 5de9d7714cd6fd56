// What a timeline holds, as text: Chrome's trace format, a JSON array of events, in Horovod's
// words.
//
// A tensor is a "process" of the trace. NEGOTIATE_<OP> lasts from the first report to the
// announcement, with a tick for each rank that reported; then comes <OP>, and in it what the tensor
// did: QUEUE until its lane is free, and the algorithm that ran. Beside the tensors there is a
// "process" for each lane, with a slice for each bucket. Rows of devices have an encoder of their
// own (device_row_encoder.hpp).
//
// No I/O, no clock, no thread: records in, text out. Records may be lost where the writer could not
// follow; the text then closes what was open and says how many, and stays well-formed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc {

enum class TimelineEvent : std::uint8_t {
  kReady,       ///< Rank `number` asks for a tensor.
  kAnnounced,   ///< All ranks have; `number` is the announcement's, values[0] the tensor's bytes.
  kStarted,     ///< Its bucket runs; `text` names the algorithm.
  kFinished,    ///< values: the shape, `number` dimensions (values of the first only).
  kEnded,       ///< It ends without having run: a barrier, a join, a failure.
  kBucket,      ///< A lane ran a bucket: values are start, bytes, bytes before and after top-k.
  kCycle,       ///< Rank 0 announces.
  kLost,        ///< `number` records did not fit into the queue.
  kWorldFailed  ///< `name` is the message.
};

/// One event. Which members count depends on `event`.
struct TimelineRecord {
  std::int64_t at_ns = 0;  ///< Since the timeline was started.
  TimelineEvent event = TimelineEvent::kCycle;
  OpType op = OpType::kAllreduce;
  DataType dtype = DataType::kFloat32;
  std::uint32_t name = 0;  ///< Which tensor it is, from 1.
  std::uint32_t process_set = 0;
  std::uint32_t lane = 0;
  std::uint64_t number = 0;
  const char* text = "";  ///< Lives as long as the process.
  std::array<std::int64_t, 4> values{};
};

/// What a file says about itself.
struct TimelineOrigin {
  int rank = 0;
  int size = 1;
  std::string host;
  TimePoint start;             ///< Times of records count from here.
  std::string clock;           ///< Files of one clock need no clock offset.
  std::int64_t steady_us = 0;  ///< That clock, at the start.
  std::int64_t epoch_us = 0;   ///< Time since 1970, at the start.
};

/// Thread: one at a time.
class TimelineEncoder {
 public:
  /// The text of an empty timeline, which ends with kTimelineEnd.
  static std::string head(const TimelineOrigin& origin);

  /// Says what `name` stands for in the records that follow.
  void define(std::uint32_t name, std::string text) { undescribed_[name] = std::move(text); }
  /// Appends the record's events to `out`, each preceded by a comma.
  void encode(const TimelineRecord& record, std::string& out);
  /// Closes whatever is open, at `at_ns`.
  void close(std::int64_t at_ns, std::string& out);

 private:
  /// How far a tensor is.
  enum class State : std::uint8_t { kNegotiating, kQueued, kRunning };

  void describe(std::uint32_t name, std::string& out);
  void begin(const TimelineRecord& record, std::string_view what, std::string& out) const;
  void bucket(const TimelineRecord& record, std::string& out);
  void finish(const TimelineRecord& record, std::string& out);
  void end(std::uint32_t name, std::int64_t at_ns, std::string& out);

  std::unordered_map<std::uint32_t, std::string> undescribed_;
  std::unordered_map<std::uint32_t, State> open_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> lanes_;  // Set and lane: pid.
};

/// With what a file of a timeline ends; the next text overwrites it.
inline constexpr std::string_view kTimelineEnd = "\n]";

}  // namespace lightcc
