// The file of a timeline: complete after each look, also where not all could be written.
#include "lightcc/engine/timeline/timeline_writer.hpp"

#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace lightcc::timeline_writer_test {
namespace {

namespace fs = std::filesystem;

class TimelineWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "timeline-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ / name; }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  fs::path directory_;
};

TimelineRecord ready(std::uint32_t name, std::uint64_t rank) {
  TimelineRecord record;
  record.event = TimelineEvent::kReady;
  record.name = name;
  record.number = rank;
  return record;
}

std::size_t ticks_in(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find("\"X\""); at != std::string::npos;
       at = text.find("\"X\"", at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(TimelineWriterTest, everything_is_in_the_file_when_it_is_closed) {
  constexpr std::uint64_t kRecords = 20'000;
  auto writer = TimelineWriter::start(path("all"), {});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  (*writer)->define(1, "a");
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    (*writer)->push(ready(1, i));
  }
  EXPECT_EQ((*writer)->lost(), 0U);
  (*writer).reset();
  const std::string text = read(path("all"));
  EXPECT_EQ(ticks_in(text), kRecords);
  EXPECT_TRUE(text.ends_with("{\"ph\": \"E\", \"ts\": 0.000, \"pid\": 1}\n]"))
      << text.substr(0, 999);
}

TEST_F(TimelineWriterTest, the_file_is_complete_while_it_is_written) {
  auto writer = TimelineWriter::start(path("live"), {});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_TRUE(read(path("live")).ends_with("}}\n]"));
  for (std::size_t round = 1; round <= 3; ++round) {
    (*writer)->define(static_cast<std::uint32_t>(round), "a");
    (*writer)->push(ready(static_cast<std::uint32_t>(round), 0));
    std::string text;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      text = read(path("live"));
    } while (ticks_in(text) < round && std::chrono::steady_clock::now() < give_up);
    EXPECT_EQ(ticks_in(text), round);
    EXPECT_TRUE(text.ends_with("\n]")) << text;
  }
}

TEST_F(TimelineWriterTest, records_without_room_are_counted_and_missed) {
  constexpr std::uint64_t kRecords = 100'000;  // More than are written in the time of a push.
  auto writer = TimelineWriter::start(path("small"), {}, 8);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  (*writer)->define(1, "a");
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    (*writer)->push(ready(1, i));
  }
  const std::uint64_t lost = (*writer)->lost();
  ASSERT_GT(lost, 0U);
  (*writer).reset();
  const std::string text = read(path("small"));
  EXPECT_EQ(ticks_in(text), kRecords - lost);
  std::uint64_t reported = 0;
  const std::string mark = "\"records\": ";
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    reported += std::stoull(text.substr(at + mark.size()));
  }
  EXPECT_EQ(reported, lost);
}

TEST_F(TimelineWriterTest, a_file_that_cannot_be_written_is_named) {
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& bad :
       {path("no/such/folder"), directory_.string(), std::string("/dev/full"), fifo}) {
    const auto writer = TimelineWriter::start(bad, {});
    ASSERT_FALSE(writer.ok()) << bad;
    EXPECT_EQ(writer.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(writer.status().message().find("the timeline '" + bad + "' cannot be written: "),
              std::string::npos)
        << writer.status().message();
  }
}

TEST_F(TimelineWriterTest, an_older_file_is_replaced) {
  std::ofstream(path("old")) << std::string(10'000, 'x');
  ASSERT_TRUE(TimelineWriter::start(path("old"), {}).ok());
  EXPECT_EQ(read(path("old")), TimelineEncoder::head({}));
}

}  // namespace
}  // namespace lightcc::timeline_writer_test
