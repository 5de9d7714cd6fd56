// The main() of test programs, each of which holds the tests of several files.
//
// --file=NAME runs the tests of NAME.cpp alone, as ctest does. Google Test's own options work too:
// with --gtest_filter, --file has no effect.
#include <cstdio>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace {

std::string_view stem_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return path.substr(0, path.rfind('.'));
}

/// Calls `take` with the full name of each test and the stem of its file.
template <typename Take>
void for_each_test(const Take& take) {
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      take(std::string(suite.name()) + '.' + test.name(), stem_of(test.file()));
    }
  }
}

/// Chooses the tests of one file. False where the program has none of that name.
bool choose_file(std::string_view wanted) {
  std::string filter;
  std::set<std::string_view> stems;
  for_each_test([&](const std::string& name, std::string_view stem) {
    stems.insert(stem);
    if (stem == wanted) {
      filter += name + ':';
    }
  });
  if (filter.empty()) {
    (void)std::fprintf(
        stderr, "--file: no test is in %s.cpp. Allowed:", std::string(wanted).c_str());
    for (const std::string_view stem : stems) {
      (void)std::fprintf(stderr, " %s", std::string(stem).c_str());
    }
    (void)std::fputs("\n", stderr);
    return false;
  }
  GTEST_FLAG_SET(filter, filter);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    constexpr std::string_view kFile = "--file=";
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFile)) {
      (void)std::fprintf(stderr, "%s: unknown; --file=NAME and --gtest_... are allowed\n", argv[i]);
      return 2;
    }
    if (GTEST_FLAG_GET(filter) == "*" && !choose_file(argument.substr(kFile.size()))) {
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
