#include "lightcc/engine/timeline/timeline_encoder.hpp"

#include <algorithm>
#include <cstdio>

#include "lightcc/engine/timeline/timeline_text.hpp"

namespace lightcc {
namespace {

// Lanes come after all tensors a job may have; viewers sort them first.
constexpr std::uint32_t kFirstLanePid = 2'000'000'000;

void add_end(std::uint32_t pid, std::int64_t at_ns, std::string_view arguments, std::string& out) {
  out += ",\n{\"ph\": \"E\", \"ts\": " + micros(at_ns) + ", \"pid\": " + std::to_string(pid);
  if (!arguments.empty()) {
    out += ", \"args\": {";
    out += arguments;
    out += '}';
  }
  out += '}';
}

std::string dimensions_of(const TimelineRecord& record) {
  std::string text = "[";
  const std::size_t known = std::min<std::size_t>(record.number, record.values.size());
  for (std::size_t i = 0; i < known; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(record.values[i]);
  }
  return text + (record.number > known ? ", ...]" : "]");
}

}  // namespace

std::string TimelineEncoder::head(const TimelineOrigin& origin) {
  std::string out;
  add_metadata("process_name",
               0,
               "\"start_time_since_epoch_in_micros\": " + std::to_string(origin.epoch_us),
               out);
  const std::string whose = "rank " + std::to_string(origin.rank) + " of " +
                            std::to_string(origin.size) +
                            (origin.host.empty() ? "" : " on " + origin.host);
  add_metadata("process_name", 0, "\"name\": " + json_string(whose), out);
  add_metadata("process_sort_index", 0, "\"sort_index\": 0", out);
  add_metadata(
      "lightcc",
      0,
      "\"rank\": " + std::to_string(origin.rank) + ", \"size\": " + std::to_string(origin.size) +
          ", \"host\": " + json_string(origin.host) + ", \"clock\": " + json_string(origin.clock) +
          ", \"steady_us\": " + std::to_string(origin.steady_us),
      out);
  out.front() = '[';  // Instead of a comma.
  return out.append(kTimelineEnd);
}

void TimelineEncoder::encode(const TimelineRecord& record, std::string& out) {
  switch (record.event) {
    case TimelineEvent::kReady: {
      if (open_.try_emplace(record.name, State::kNegotiating).second) {
        describe(record.name, out);
        begin(record, std::string("NEGOTIATE_") + op_type_name(record.op), out);
        out += '}';
      }
      out += ",\n{\"ph\": \"X\", \"name\": \"" + std::to_string(record.number) + R"(", "ts": )" +
             micros(record.at_ns) + ", \"pid\": " + std::to_string(record.name) + ", \"dur\": 0}";
      return;
    }
    case TimelineEvent::kAnnounced:
      end(record.name, record.at_ns, out);
      describe(record.name, out);
      begin(record, op_type_name(record.op), out);
      out += R"(, "args": {"sequence": )" + std::to_string(record.number) +
             ", \"lane\": " + std::to_string(record.lane) +
             ", \"bytes\": " + std::to_string(record.values[0]) + "}}";
      begin(record, "QUEUE", out);
      out += '}';
      open_[record.name] = State::kQueued;
      return;
    case TimelineEvent::kStarted:
      if (const auto found = open_.find(record.name);
          found != open_.end() && found->second == State::kQueued) {
        add_end(record.name, record.at_ns, {}, out);
        begin(record, std::string(record.text) + '_' + op_type_name(record.op), out);
        out += '}';
        found->second = State::kRunning;
      }
      return;
    case TimelineEvent::kFinished:
      finish(record, out);
      return;
    case TimelineEvent::kEnded:
      end(record.name, record.at_ns, out);
      return;
    case TimelineEvent::kBucket:
      bucket(record, out);
      return;
    case TimelineEvent::kCycle:
      add_mark("CYCLE_START", record.at_ns, {}, out);
      return;
    case TimelineEvent::kLost:
      close(record.at_ns, out);
      add_mark("LOST_RECORDS", record.at_ns, "\"records\": " + std::to_string(record.number), out);
      return;
    case TimelineEvent::kWorldFailed: {
      close(record.at_ns, out);
      const auto message = undescribed_.extract(record.name);
      add_mark("WORLD_FAILED",
               record.at_ns,
               "\"error\": " + json_string(message.empty() ? "" : message.mapped()),
               out);
      return;
    }
  }
}

void TimelineEncoder::close(std::int64_t at_ns, std::string& out) {
  std::vector<std::uint32_t> names;
  names.reserve(open_.size());
  for (const auto& [name, state] : open_) {
    names.push_back(name);
  }
  std::ranges::sort(names);  // The same records give the same text.
  for (const std::uint32_t name : names) {
    end(name, at_ns, out);
  }
}

void TimelineEncoder::describe(std::uint32_t name, std::string& out) {
  const auto found = undescribed_.find(name);
  if (found == undescribed_.end()) {
    return;
  }
  add_names(name, found->second, "operations", out);
  add_metadata("process_sort_index", name, "\"sort_index\": " + std::to_string(name), out);
  undescribed_.erase(found);
}

// The caller appends arguments, if there are any, and closes the brace.
void TimelineEncoder::begin(const TimelineRecord& record,
                            std::string_view what,
                            std::string& out) const {
  out += ",\n{\"ph\": \"B\", \"name\": \"";
  out += what;
  out += R"(", "ts": )" + micros(record.at_ns) + ", \"pid\": " + std::to_string(record.name);
}

void TimelineEncoder::finish(const TimelineRecord& record, std::string& out) {
  const auto found = open_.find(record.name);
  if (found == open_.end() || found->second == State::kNegotiating) {
    return;  // Its beginning was before the timeline's, or is lost.
  }
  add_end(record.name, record.at_ns, {}, out);
  add_end(record.name,
          record.at_ns,
          std::string(R"("dtype": ")") + data_type_name(record.dtype) + R"(", "shape": ")" +
              dimensions_of(record) + '"',
          out);
  open_.erase(found);
}

void TimelineEncoder::end(std::uint32_t name, std::int64_t at_ns, std::string& out) {
  const auto found = open_.find(name);
  if (found == open_.end()) {
    return;
  }
  add_end(name, at_ns, {}, out);
  if (found->second != State::kNegotiating) {
    add_end(name, at_ns, {}, out);
  }
  open_.erase(found);
}

void TimelineEncoder::bucket(const TimelineRecord& record, std::string& out) {
  const auto next = static_cast<std::uint32_t>(kFirstLanePid + lanes_.size());
  const auto [lane, is_new] = lanes_.try_emplace({record.process_set, record.lane}, next);
  if (is_new) {
    std::string name = "lane " + std::to_string(record.lane);
    if (record.process_set != 0) {
      name += " of process set " + std::to_string(record.process_set);
    }
    add_names(lane->second, name, "buckets", out);
    add_metadata("process_sort_index", lane->second, "\"sort_index\": -1", out);
  }
  const auto [start, bytes, dense, sent] = record.values;
  out += ",\n{\"ph\": \"X\", \"name\": \"" + std::string(record.text) + '_' +
         op_type_name(record.op) + R"(", "ts": )" + micros(start) +
         ", \"pid\": " + std::to_string(lane->second) +
         ", \"dur\": " + micros(record.at_ns - start) + R"(, "args": {"tensors": )" +
         std::to_string(record.number) + ", \"bytes\": " + std::to_string(bytes);
  if (dense > 0) {
    out += ", \"topk_dense_bytes\": " + std::to_string(dense) +
           ", \"topk_sent_bytes\": " + std::to_string(sent);
  }
  out += "}}";
}

}  // namespace lightcc
