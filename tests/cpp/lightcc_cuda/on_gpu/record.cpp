// LIGHTCC_TEST_RECORD=FILE appends a line of JSON as each case begins, and as it is over. So cases
// count even where the program is ended before it can report (tests/python/records.py, which says
// what a line has).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace lightcc::cuda::testing {
namespace {

/// What the first part says in which the case was skipped, without what JSON would have escaped.
std::string reason_of(const ::testing::TestResult& result) {
  std::string reason = "no reason";
  for (int part = 0; part < result.total_part_count(); ++part) {
    if (result.GetTestPartResult(part).skipped()) {
      reason = result.GetTestPartResult(part).message();
      break;
    }
  }
  std::ranges::replace_if(
      reason,
      [](char letter) { return letter == '"' || letter == '\\' || (letter >= 0 && letter < ' '); },
      ' ');
  return reason;
}

class Recorder final : public ::testing::EmptyTestEventListener {
 public:
  explicit Recorder(std::string path) : path_(std::move(path)) {}

  void OnTestStart(const ::testing::TestInfo& test) override { add(test, R"("begun")"); }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    if (result.Failed()) {
      add(test, R"("failed")");
    } else if (result.Skipped()) {
      add(test, R"("skipped", "reason": ")" + reason_of(result) + '"');
    } else {
      add(test, R"("passed")");
    }
  }

 private:
  void add(const ::testing::TestInfo& test, const std::string& result) const {
    const std::string line = R"({"test": ")" + std::string(test.test_suite_name()) + '.' +
                             test.name() + R"(", "result": )" + result + "}\n";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path_.c_str(), "a"),
                                                               &std::fclose);
    if (file == nullptr || std::fputs(line.c_str(), file.get()) < 0) {
      std::fprintf(stderr, "LIGHTCC_TEST_RECORD=%s cannot be written\n", path_.c_str());
    }
  }

  const std::string path_;
};

[[maybe_unused]] const bool is_recorded = [] {
  const char* const path = std::getenv("LIGHTCC_TEST_RECORD");
  if (path != nullptr) {
    ::testing::UnitTest::GetInstance()->listeners().Append(new Recorder(path));
  }
  return path != nullptr;
}();

}  // namespace
}  // namespace lightcc::cuda::testing
