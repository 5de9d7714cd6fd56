#include "lightcc/base/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/unique_fd.hpp"

#include "doubles/threads.hpp"

namespace lightcc::log_test {
namespace {

Mutex captured_mutex;
std::vector<std::string> captured LIGHTCC_GUARDED_BY(captured_mutex);

void capture(LogLevel /*level*/, const std::string& line) {
  const MutexLock lock(captured_mutex);
  captured.push_back(line);
}

std::vector<std::string> take_captured() {
  const MutexLock lock(captured_mutex);
  return std::exchange(captured, {});
}

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    take_captured();
    set_log_sink(&capture);
  }
  void TearDown() override {
    set_log_sink(nullptr);
    configure_log(LogLevel::kWarning, false, -1);
  }
};

TEST_F(Log, lines_name_rank_and_level) {
  configure_log(LogLevel::kTrace, true, 3);
  LIGHTCC_LOG(LogLevel::kWarning, "late by %d", 5);
  configure_log(LogLevel::kTrace, true, -1);
  LIGHTCC_LOG(LogLevel::kDebug, "no world");
  EXPECT_EQ(take_captured(),
            (std::vector<std::string>{"[lightcc 3 WARN] late by 5", "[lightcc DEBUG] no world"}));
}

TEST_F(Log, time_stands_first_unless_hidden) {
  configure_log(LogLevel::kInfo, false, 0);
  LIGHTCC_LOG(LogLevel::kInfo, "x");
  const std::vector<std::string> lines = take_captured();
  ASSERT_EQ(lines.size(), 1U);
  const std::regex expected(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[lightcc 0 INFO\] x)");
  EXPECT_TRUE(std::regex_match(lines[0], expected)) << lines[0];
}

TEST_F(Log, levels_below_the_threshold_evaluate_nothing) {
  configure_log(LogLevel::kError, true, 0);
  int evaluated = 0;
  LIGHTCC_LOG(LogLevel::kWarning, "%d", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  LIGHTCC_LOG(LogLevel::kError, "%d", ++evaluated);
  LIGHTCC_LOG(LogLevel::kFatal, "%d", ++evaluated);
  EXPECT_EQ(evaluated, 2);
  EXPECT_EQ(take_captured().size(), 2U);
}

TEST_F(Log, foreign_text_cannot_forge_a_second_line) {
  configure_log(LogLevel::kInfo, true, 1);
  LIGHTCC_LOG(LogLevel::kInfo, "%s", "name\n[lightcc 0 ERROR] forged\x1b[2J\x7f");
  EXPECT_EQ(take_captured(),
            std::vector<std::string>{"[lightcc 1 INFO] name [lightcc 0 ERROR] forged [2J "});
}

TEST_F(Log, a_line_that_is_too_long_is_cut_and_says_so) {
  configure_log(LogLevel::kInfo, true, 0);
  LIGHTCC_LOG(LogLevel::kInfo, "%s", std::string(10000, 'z').c_str());
  const std::vector<std::string> lines = take_captured();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_LT(lines[0].size(), 4200U);
  EXPECT_TRUE(lines[0].ends_with("zzz..."));
}

TEST_F(Log, threads_do_not_mix_their_lines_on_standard_error) {
  constexpr int kThreads = 4;
  constexpr int kLines = 100;
  set_log_sink(nullptr);
  configure_log(LogLevel::kInfo, true, 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const UniqueFd saved(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  ASSERT_EQ(dup2(writing.get(), STDERR_FILENO), STDERR_FILENO);
  run_on_threads(kThreads, [](int) {  // All lines together fit into the pipe.
    for (int i = 0; i < kLines; ++i) {
      LIGHTCC_LOG(LogLevel::kInfo, "0123456789");
    }
  });
  ASSERT_EQ(dup2(saved.get(), STDERR_FILENO), STDERR_FILENO);
  writing.reset();
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 1; got > 0;) {
    got = read(reading.get(), buffer.data(), buffer.size());
    text.append(buffer.data(), static_cast<std::size_t>(got > 0 ? got : 0));
  }
  std::string expected;
  for (int i = 0; i < kThreads * kLines; ++i) {
    expected += "[lightcc 0 INFO] 0123456789\n";
  }
  EXPECT_EQ(text, expected);
}

}  // namespace
}  // namespace lightcc::log_test
