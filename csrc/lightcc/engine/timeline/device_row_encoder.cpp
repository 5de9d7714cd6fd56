#include "lightcc/engine/timeline/device_row_encoder.hpp"

#include <algorithm>

#include "lightcc/engine/timeline/timeline_text.hpp"

namespace lightcc {
namespace {

// They come after lanes (timeline_encoder.cpp).
constexpr std::uint32_t kFirstRowPid = 2'100'000'000;

}  // namespace

void DeviceRowEncoder::encode(const DeviceRows::Taken& taken, std::string& out) {
  for (const DeviceRecord& record : taken.records) {
    encode(record, out);
  }
  if (taken.lost > 0) {
    const std::int64_t at_ns = taken.records.empty() ? 0 : ns(taken.records.back().span.end);
    add_mark("LOST_SPANS",
             std::max<std::int64_t>(at_ns, 0),
             "\"spans\": " + std::to_string(taken.lost),
             out);
  }
}

void DeviceRowEncoder::encode(const DeviceRecord& record, std::string& out) {
  const DeviceSpan& span = record.span;
  Row& row = row_of(span, out);
  if (span.error > row.error) {
    row.error = span.error;
    add_metadata("lightcc_device",
                 row.pid,
                 "\"device\": " + std::to_string(span.device) +
                     ", \"error_us\": " + micros(span.error.count()),
                 out);
  }
  // Times are as exact as they are, but what lasts was done one after another.
  const std::int64_t first = span.begin == span.end ? 0 : row.last_ns;
  const std::int64_t begin = std::max(ns(span.begin), first);
  const std::int64_t end = std::max(ns(span.end), begin);
  row.last_ns = std::max(row.last_ns, end);
  const TracedBucket& bucket = *record.bucket;
  out += ",\n{\"ph\": \"X\", \"name\": " + json_string(bucket.name) + ", \"ts\": " + micros(begin) +
         ", \"pid\": " + std::to_string(row.pid) + ", \"dur\": " + micros(end - begin) +
         R"(, "args": {"what": )" + json_string(span.what) +
         (span.bytes.has_value() ? ", \"bytes\": " + std::to_string(*span.bytes) : std::string()) +
         ", \"bucket_bytes\": " + std::to_string(bucket.bytes) +
         ", \"tensors\": " + std::to_string(bucket.tensors) +
         ", \"tensor\": " + json_string(bucket.tensor) +
         ", \"sequence\": " + std::to_string(bucket.sequence);
  if (!span.failure.empty()) {
    out += ", \"failed\": " + json_string(span.failure);
  }
  out += "}}";
}

DeviceRowEncoder::Row& DeviceRowEncoder::row_of(const DeviceSpan& span, std::string& out) {
  const auto [found, is_new] = rows_.try_emplace(span.row);
  Row& row = found->second;
  if (is_new) {
    row.pid = static_cast<std::uint32_t>(kFirstRowPid + rows_.size() - 1);
    add_names(row.pid, span.row, "buckets", out);
    add_metadata("process_sort_index", row.pid, "\"sort_index\": -1", out);
  }
  return row;
}

}  // namespace lightcc
