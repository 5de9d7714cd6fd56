// The text of a timeline.
#include "lightcc/engine/timeline/timeline_encoder.hpp"

#include <string>

#include <gtest/gtest.h>

#include "lightcc/engine/timeline/timeline_text.hpp"

namespace lightcc::timeline_encoder_test {
namespace {

TimelineRecord record(TimelineEvent event, std::uint32_t name, std::int64_t at_ns) {
  TimelineRecord made;
  made.event = event;
  made.name = name;
  made.at_ns = at_ns;
  return made;
}

std::string encoded(TimelineEncoder& encoder, const TimelineRecord& one) {
  std::string out;
  encoder.encode(one, out);
  return out;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

TEST(TimelineEncoder, an_operation_is_negotiated_queued_run_and_ended) {
  TimelineEncoder encoder;
  encoder.define(1, "allreduce.a");
  TimelineRecord ready = record(TimelineEvent::kReady, 1, 1500);
  ready.number = 3;
  EXPECT_EQ(encoded(encoder, ready),
            ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, "
            "\"args\": {\"name\": \"allreduce.a\"}}"
            ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": 1, "
            "\"args\": {\"name\": \"operations\"}}"
            ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 1, "
            "\"args\": {\"sort_index\": 1}}"
            ",\n{\"ph\": \"B\", \"name\": \"NEGOTIATE_ALLREDUCE\", \"ts\": 1.500, \"pid\": 1}"
            ",\n{\"ph\": \"X\", \"name\": \"3\", \"ts\": 1.500, \"pid\": 1, \"dur\": 0}");
  ready.number = 0;
  EXPECT_EQ(encoded(encoder, ready),
            ",\n{\"ph\": \"X\", \"name\": \"0\", \"ts\": 1.500, \"pid\": 1, \"dur\": 0}");
  TimelineRecord announced = record(TimelineEvent::kAnnounced, 1, 2000);
  announced.number = 7;
  announced.values[0] = 12;
  EXPECT_EQ(encoded(encoder, announced),
            ",\n{\"ph\": \"E\", \"ts\": 2.000, \"pid\": 1}"
            ",\n{\"ph\": \"B\", \"name\": \"ALLREDUCE\", \"ts\": 2.000, \"pid\": 1, "
            "\"args\": {\"sequence\": 7, \"lane\": 0, \"bytes\": 12}}"
            ",\n{\"ph\": \"B\", \"name\": \"QUEUE\", \"ts\": 2.000, \"pid\": 1}");
  TimelineRecord started = record(TimelineEvent::kStarted, 1, 3000);
  started.text = "SHM";
  EXPECT_EQ(encoded(encoder, started),
            ",\n{\"ph\": \"E\", \"ts\": 3.000, \"pid\": 1}"
            ",\n{\"ph\": \"B\", \"name\": \"SHM_ALLREDUCE\", \"ts\": 3.000, \"pid\": 1}");
  TimelineRecord finished = record(TimelineEvent::kFinished, 1, 4001);
  finished.number = 5;
  finished.values = {3, 1, 1, 1};
  EXPECT_EQ(encoded(encoder, finished),
            ",\n{\"ph\": \"E\", \"ts\": 4.001, \"pid\": 1}"
            ",\n{\"ph\": \"E\", \"ts\": 4.001, \"pid\": 1, "
            "\"args\": {\"dtype\": \"float32\", \"shape\": \"[3, 1, 1, 1, ...]\"}}");
  std::string rest;
  encoder.close(5000, rest);
  EXPECT_EQ(rest, "");
}

TEST(TimelineEncoder, a_bucket_is_a_slice_of_its_lane) {
  TimelineEncoder encoder;
  TimelineRecord bucket = record(TimelineEvent::kBucket, 0, 9000);
  bucket.process_set = 2;
  bucket.lane = 1;
  bucket.text = "TOPK";
  bucket.number = 4;
  bucket.values = {5000, 4096, 4096, 100};
  const std::string text = encoded(encoder, bucket);
  EXPECT_NE(text.find("\"name\": \"lane 1 of process set 2\""), std::string::npos) << text;
  EXPECT_NE(text.find("{\"ph\": \"X\", \"name\": \"TOPK_ALLREDUCE\", \"ts\": 5.000, \"pid\": "
                      "2000000000, \"dur\": 4.000, \"args\": {\"tensors\": 4, \"bytes\": 4096, "
                      "\"topk_dense_bytes\": 4096, \"topk_sent_bytes\": 100}}"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\"tid\": 2000000000, \"args\": {\"name\": \"buckets\"}"), std::string::npos)
      << text;
  EXPECT_EQ(count(encoded(encoder, bucket), "process_name"), 0U);
}

TEST(TimelineEncoder, what_began_before_the_file_has_no_end_in_it) {
  TimelineEncoder encoder;
  encoder.define(1, "late");
  EXPECT_EQ(encoded(encoder, record(TimelineEvent::kEnded, 1, 1)), "");
  EXPECT_EQ(encoded(encoder, record(TimelineEvent::kStarted, 1, 1)), "");
  EXPECT_EQ(encoded(encoder, record(TimelineEvent::kFinished, 1, 1)), "");
}

TEST(TimelineEncoder, lost_records_leave_nothing_open) {
  TimelineEncoder encoder;
  encoder.define(1, "negotiated");
  encoder.define(2, "running");
  std::string text;
  encoder.encode(record(TimelineEvent::kReady, 1, 1000), text);
  encoder.encode(record(TimelineEvent::kAnnounced, 2, 1000), text);
  TimelineRecord lost = record(TimelineEvent::kLost, 0, 2000);
  lost.number = 17;
  encoder.encode(lost, text);
  EXPECT_EQ(count(text, "\"ph\": \"B\""), 3U);
  EXPECT_EQ(count(text, "\"ph\": \"E\""), 3U);
  EXPECT_NE(text.find("\"LOST_RECORDS\", \"ts\": 2.000, \"pid\": 0, \"s\": \"p\", "
                      "\"args\": {\"records\": 17}"),
            std::string::npos)
      << text;
  EXPECT_EQ(encoded(encoder, record(TimelineEvent::kFinished, 2, 3000)), "");
}

TEST(TimelineEncoder, a_failure_of_the_world_closes_all_and_is_told) {
  TimelineEncoder encoder;
  encoder.define(1, "a");
  encoder.define(2, "rank 1 is \"gone\"");
  std::string text;
  encoder.encode(record(TimelineEvent::kReady, 1, 1000), text);
  encoder.encode(record(TimelineEvent::kWorldFailed, 2, 2000), text);
  EXPECT_EQ(count(text, "\"ph\": \"E\""), 1U);
  EXPECT_NE(text.find("\"error\": \"rank 1 is \\\"gone\\\"\""), std::string::npos) << text;
}

TEST(TimelineEncoder, names_are_json_whatever_they_hold) {
  EXPECT_EQ(json_string("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(json_string("line\nend\x01"), "\"line\\u000aend\\u0001\"");
  EXPECT_EQ(json_string("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
            "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
  EXPECT_EQ(json_string("\xff\xc3"), "\"??\"");            // No first byte, and half a letter.
  EXPECT_EQ(json_string("\xc0\x80"), "\"??\"");            // Too long a form.
  EXPECT_EQ(json_string("\xed\xa0\x80x"), "\"???x\"");     // A surrogate.
  EXPECT_EQ(json_string("\xf4\x90\x80\x80"), "\"????\"");  // Beyond Unicode.
}

TEST(TimelineEncoder, the_head_is_a_timeline_of_its_own) {
  TimelineOrigin origin;
  origin.rank = 2;
  origin.size = 4;
  origin.host = "here";
  origin.clock = "boot";
  origin.steady_us = 11;
  origin.epoch_us = 12;
  const std::string head = TimelineEncoder::head(origin);
  EXPECT_TRUE(head.starts_with("[\n{\"name\": \"process_name\"")) << head;
  EXPECT_TRUE(head.ends_with(kTimelineEnd)) << head;
  EXPECT_NE(head.find("{\"name\": \"rank 2 of 4 on here\"}"), std::string::npos) << head;
  EXPECT_NE(head.find("\"start_time_since_epoch_in_micros\": 12"), std::string::npos);
  EXPECT_NE(head.find("{\"rank\": 2, \"size\": 4, \"host\": \"here\", \"clock\": \"boot\", "
                      "\"steady_us\": 11}"),
            std::string::npos)
      << head;
}

}  // namespace
}  // namespace lightcc::timeline_encoder_test
