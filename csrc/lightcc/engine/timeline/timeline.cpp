#include "lightcc/engine/timeline/timeline.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "lightcc/control/agreement.hpp"
#include "lightcc/engine/timeline/device_rows.hpp"

namespace lightcc {
namespace {

// Names that are not given by the program never come back (sequencer_buckets.cpp).
bool comes_back(const std::string& name) {
  return !name.starts_with("noname.") && name.find(".noname.") == std::string::npos;
}

// A tensor's name in the file: names of different process sets may be the same.
std::string file_name(std::uint32_t process_set, const std::string& name) {
  return process_set == kGlobalProcessSet
             ? name
             : name + " (process set " + std::to_string(process_set) + ")";
}

TimelineOrigin origin_of(int rank, int size, TimePoint start) {
  const auto micros = [](auto time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  };
  TimelineOrigin origin;
  origin.start = start;
  origin.rank = rank;
  origin.size = size;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) {
    origin.host = host.data();
  }
  // The steady clock begins with the kernel.
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, origin.clock);
  origin.steady_us = micros(start);
  origin.epoch_us = micros(std::chrono::system_clock::now());
  return origin;
}

}  // namespace

std::string timeline_path(const std::string& path, int rank) {
  if (rank == 0) {
    return path;
  }
  const std::size_t slash = path.rfind('/');
  const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t dot = path.rfind('.');
  const std::size_t at = dot == std::string::npos || dot <= begin ? path.size() : dot;
  return path.substr(0, at) + ".rank" + std::to_string(rank) + path.substr(at);
}

Status Timeline::start(const TimelineOptions& options, int rank, int size) {
  if (is_on() && path_ == options.path) {
    marks_cycles_ = options.marks_cycles;
    return {};
  }
  stop();
  if (rank != 0 && !options.all_ranks) {
    return {};
  }
  start_ = clock_.now();
  path_ = options.path;
  LIGHTCC_ASSIGN_OR_RETURN(
      writer_,
      TimelineWriter::start(timeline_path(options.path, rank), origin_of(rank, size, start_)));
  marks_cycles_ = options.marks_cycles;
  on_ = true;
  return {};
}

void Timeline::stop() {
  on_ = false;
  writer_.reset();
  compressed_.reset();
  cycle_ns_.reset();
  numbers_.clear();
  last_number_ = 0;
}

std::uint32_t Timeline::number_of(std::uint32_t process_set, const std::string& name) {
  const bool is_global = process_set == kGlobalProcessSet;
  const auto found = numbers_.find(is_global ? name : file_name(process_set, name));
  if (found != numbers_.end()) {
    return found->second;
  }
  const std::string text = file_name(process_set, name);
  writer_->define(++last_number_, text);
  numbers_.emplace(text, last_number_);
  return last_number_;
}

void Timeline::record_ready(const Signature& tensor, std::uint32_t rank) {
  TimelineRecord record;
  record.at_ns = now_ns();
  record.event = TimelineEvent::kReady;
  record.op = tensor.op;
  record.name = number_of(tensor.process_set, tensor.name);
  record.number = rank;
  push(record);
}

void Timeline::record_announced(const Signature& tensor, const Execute& execute) {
  TimelineRecord record;
  record.at_ns = cycle_ns_.has_value() ? *cycle_ns_ : now_ns();
  record.event = TimelineEvent::kAnnounced;
  record.op = tensor.op;
  record.name = number_of(tensor.process_set, tensor.name);
  record.lane = execute.lane;
  record.number = execute.sequence;
  record.values[0] = static_cast<std::int64_t>(byte_count(tensor));
  push(record);
}

void Timeline::record_ended(std::uint32_t process_set, const std::string& name) {
  const auto found = numbers_.find(file_name(process_set, name));
  if (found == numbers_.end()) {
    return;
  }
  push({.at_ns = now_ns(), .event = TimelineEvent::kEnded, .name = found->second});
  if (!comes_back(name)) {
    numbers_.erase(found);
  }
}

void Timeline::record_started(const Bucket& bucket,
                              const char* how,
                              const CompressionCounters& counters) {
  compressed_ = compressed_.value_or(counters);
  TimelineRecord record;
  record.at_ns = now_ns();
  record.event = TimelineEvent::kStarted;
  record.op = bucket.tensors.front().signature().op;
  record.text = how;
  for (const BucketTensor& tensor : bucket.tensors) {
    record.name = number_of(bucket.process_set, tensor.signature().name);
    push(record);
  }
}

std::shared_ptr<DeviceTrace> Timeline::trace(const Bucket& bucket,
                                             const char* how,
                                             std::vector<std::shared_ptr<ReadyEvent>> inputs) {
  if (!is_on()) {
    return nullptr;
  }
  const Signature& first = bucket.tensors.front().signature();
  return make_device_trace(writer_->device_rows(),
                           {.name = std::string(how) + '_' + op_type_name(first.op),
                            .tensor = file_name(bucket.process_set, first.name),
                            .tensors = bucket.tensors.size(),
                            .bytes = byte_count(bucket),
                            .sequence = bucket.sequence},
                           std::move(inputs));
}

void Timeline::record_finished(const Bucket& bucket,
                               const char* how,
                               TimePoint since,
                               const CompressionCounters& counters) {
  TimelineRecord whole;
  whole.at_ns = now_ns();
  whole.event = TimelineEvent::kBucket;
  whole.op = bucket.tensors.front().signature().op;
  whole.process_set = bucket.process_set;
  whole.lane = bucket.lane;
  whole.number = bucket.tensors.size();
  whole.text = how;
  std::int64_t bytes = 0;
  for (const BucketTensor& tensor : bucket.tensors) {
    const Signature& s = tensor.signature();
    bytes += static_cast<std::int64_t>(byte_count(s));
    TimelineRecord record;
    record.at_ns = whole.at_ns;
    record.event = TimelineEvent::kFinished;
    record.op = s.op;
    record.dtype = s.dtype;
    record.name = number_of(bucket.process_set, s.name);
    const auto& shape = tensor.outcome.shape.empty() ? s.shape : tensor.outcome.shape;
    record.number = shape.size();
    std::copy_n(shape.begin(), std::min(shape.size(), record.values.size()), record.values.begin());
    push(record);
    if (!comes_back(s.name)) {
      numbers_.erase(file_name(bucket.process_set, s.name));
    }
  }
  const CompressionCounters before = compressed_.value_or(counters);
  whole.values = {std::max<std::int64_t>(ns(since), 0),
                  bytes,
                  static_cast<std::int64_t>(counters.dense_bytes - before.dense_bytes),
                  static_cast<std::int64_t>(counters.sent_bytes - before.sent_bytes)};
  compressed_ = counters;
  push(whole);
}

// No other rank may seem to know an announcement before rank 0: merged files rely on that.
void Timeline::record_cycle() {
  cycle_ns_ = now_ns();
  if (marks_cycles_) {
    push({.at_ns = *cycle_ns_, .event = TimelineEvent::kCycle});
  }
}

void Timeline::record_failure(const Status& error) {
  const std::uint32_t message = ++last_number_;
  writer_->define(message, error.message());
  push({.at_ns = now_ns(), .event = TimelineEvent::kWorldFailed, .name = message});
  writer_->hurry();
}

}  // namespace lightcc
