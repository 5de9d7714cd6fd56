// What devices did, from their threads into the file of a timeline.
#include "lightcc/engine/timeline/device_rows.hpp"

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/timeline/device_row_encoder.hpp"
#include "lightcc/engine/timeline/timeline_writer.hpp"

namespace lightcc::device_rows_test {
namespace {

TimePoint at_us(std::int64_t us) {
  return TimePoint(std::chrono::microseconds(us));
}

DeviceSpan span(std::string row, std::int64_t begin_us, std::int64_t end_us) {
  DeviceSpan made;
  made.row = std::move(row);
  made.what = "ncclAllReduce";
  made.begin = at_us(begin_us);
  made.end = at_us(end_us);
  made.error = std::chrono::microseconds(3);
  return made;
}

std::shared_ptr<DeviceTrace> trace_into(const std::shared_ptr<DeviceRows>& rows) {
  return make_device_trace(
      rows,
      {.name = "NCCL_ALLREDUCE", .tensor = "a\"b", .tensors = 2, .bytes = 400, .sequence = 7},
      {});
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

TEST(DeviceRowEncoder, a_row_is_named_and_says_how_exact_it_is) {
  const auto rows = std::make_shared<DeviceRows>();
  trace_into(rows)->add(span("GPU 1 NCCL", 110, 150));
  DeviceRowEncoder encoder(at_us(100));
  std::string text;
  encoder.encode(rows->take(), text);
  EXPECT_EQ(text,
            ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 2100000000, \"args\": "
            "{\"name\": \"GPU 1 NCCL\"}},\n"
            "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 2100000000, \"tid\": 2100000000, "
            "\"args\": {\"name\": \"buckets\"}},\n"
            "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 2100000000, \"args\": "
            "{\"sort_index\": -1}},\n"
            "{\"name\": \"lightcc_device\", \"ph\": \"M\", \"pid\": 2100000000, \"args\": "
            "{\"device\": 0, \"error_us\": 3.000}},\n"
            "{\"ph\": \"X\", \"name\": \"NCCL_ALLREDUCE\", \"ts\": 10.000, \"pid\": 2100000000, "
            "\"dur\": 40.000, \"args\": {\"what\": \"ncclAllReduce\", "
            "\"bucket_bytes\": 400, \"tensors\": 2, \"tensor\": \"a\\\"b\", \"sequence\": 7}}");
}

TEST(DeviceRowEncoder, what_follows_is_said_again_only_where_it_is_worse) {
  const auto rows = std::make_shared<DeviceRows>();
  const auto trace = trace_into(rows);
  trace->add(span("GPU 0 NCCL", 110, 150));
  // Its times are wrong by a little: it began when the one before was over.
  DeviceSpan second = span("GPU 0 NCCL", 149, 160);
  second.bytes = 12;
  trace->add(std::move(second));
  DeviceSpan third = span("GPU 0 NCCL", 170, 180);
  third.error = std::chrono::microseconds(9);
  third.failure = "aborted";
  trace->add(std::move(third));
  DeviceRowEncoder encoder(at_us(100));
  std::string text;
  encoder.encode(rows->take(), text);
  EXPECT_EQ(count(text, "process_name"), 1U);
  EXPECT_EQ(count(text, "error_us"), 2U);
  EXPECT_NE(text.find("\"error_us\": 9.000"), std::string::npos);
  EXPECT_NE(text.find("\"ts\": 50.000, \"pid\": 2100000000, \"dur\": 10.000"), std::string::npos);
  EXPECT_NE(text.find("\"bytes\": 12"), std::string::npos);
  EXPECT_EQ(count(text, "\"failed\": \"aborted\"}}"), 1U);
}

TEST(DeviceRowEncoder, a_moment_may_come_before_the_one_that_was_said_before) {
  const auto rows = std::make_shared<DeviceRows>();
  const auto trace = trace_into(rows);
  trace->add(span("GPU 0 inputs", 150, 150));
  trace->add(span("GPU 0 inputs", 120, 120));
  trace->add(span("GPU 0 inputs", 90, 90));  // Before the timeline: there is no such time.
  DeviceRowEncoder encoder(at_us(100));
  std::string text;
  encoder.encode(rows->take(), text);
  for (const char* const time : {"\"ts\": 50.000", "\"ts\": 20.000", "\"ts\": 0.000"}) {
    EXPECT_EQ(count(text, time), 1U) << time;
  }
  EXPECT_EQ(count(text, "\"dur\": 0.000"), 3U);
}

TEST(DeviceRows, what_does_not_fit_is_counted_and_missed) {
  const auto rows = std::make_shared<DeviceRows>(2);
  const auto trace = trace_into(rows);
  for (int i = 0; i < 5; ++i) {
    trace->add(span("GPU 0 NCCL", 100, 200));
  }
  const DeviceRows::Taken taken = rows->take();
  EXPECT_EQ(taken.records.size(), 2U);
  EXPECT_EQ(taken.lost, 3U);
  DeviceRowEncoder encoder(at_us(0));
  std::string text;
  encoder.encode(taken, text);
  EXPECT_NE(text.find(R"("name": "LOST_SPANS", "ts": 200.000, "pid": 0, "s": "p", )"
                      R"("args": {"spans": 3}})"),
            std::string::npos)
      << text;
  trace->add(span("GPU 0 NCCL", 300, 400));  // There is room again.
  EXPECT_EQ(rows->take().records.size(), 1U);
}

TEST(DeviceRows, nothing_comes_in_when_they_are_closed) {
  const auto rows = std::make_shared<DeviceRows>();
  const auto trace = trace_into(rows);
  EXPECT_TRUE(trace->is_recording());
  trace->add(span("GPU 0 NCCL", 100, 200));
  rows->close();
  trace->add(span("GPU 0 NCCL", 300, 400));
  EXPECT_FALSE(trace->is_recording());
  EXPECT_EQ(rows->take().records.size(), 1U);
}

class NeverAsked final : public ReadyEvent {
 public:
  Result<bool> is_ready() override { return false; }
};

TEST(DeviceTrace, inputs_are_for_one_operation_of_each_device) {
  const auto rows = std::make_shared<DeviceRows>();
  const auto trace = make_device_trace(rows, {}, {std::make_shared<NeverAsked>()});
  EXPECT_EQ(trace->take_inputs(0).size(), 1U);
  EXPECT_EQ(trace->take_inputs(0).size(), 0U);
  EXPECT_EQ(trace->take_inputs(1).size(), 1U);
}

TEST(DeviceTrace, belongs_to_the_thread_that_moves_the_bucket_on) {
  const std::shared_ptr<DeviceTrace> trace = trace_into(std::make_shared<DeviceRows>());
  EXPECT_EQ(current_device_trace(), nullptr);
  {
    const DeviceTraceScope scope(trace);
    EXPECT_EQ(current_device_trace(), trace);
    std::thread([] { EXPECT_EQ(current_device_trace(), nullptr); }).join();
  }
  EXPECT_EQ(current_device_trace(), nullptr);
  const std::shared_ptr<DeviceTrace> none;
  const DeviceTraceScope scope(none);
  EXPECT_EQ(current_device_trace(), nullptr);
}

TEST(DeviceRows, come_from_many_threads_while_the_file_is_written) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kSpans = 500;
  std::string pattern = std::filesystem::temp_directory_path() / "rows-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  const std::string path = folder / "t.json";
  auto writer = TimelineWriter::start(path, {});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const std::shared_ptr<DeviceRows> rows = (*writer)->device_rows();
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&rows, thread] {
      const auto trace = trace_into(rows);
      for (std::size_t i = 0; i < kSpans; ++i) {
        const auto begin = static_cast<std::int64_t>(10 * i);
        trace->add(span("GPU " + std::to_string(thread) + " NCCL", begin, begin + 5));
      }
    });
  }
  TimelineRecord tick;
  tick.event = TimelineEvent::kReady;
  tick.name = 1;
  (*writer)->define(1, "a");
  for (std::size_t i = 0; i < kSpans; ++i) {
    (*writer)->push(tick);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  (*writer).reset();
  trace_into(rows)->add(span("GPU 0 NCCL", 0, 1));  // The file is closed.
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(count(text.str(), "\"NCCL_ALLREDUCE\""), kThreads * kSpans);
  EXPECT_EQ(count(text.str(), "error_us"), kThreads);
  EXPECT_EQ(count(text.str(), "\"X\""), (kThreads + 1) * kSpans);
  EXPECT_TRUE(text.str().ends_with("\n]"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lightcc::device_rows_test
