#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "telemetry/scratch_folder.hpp"
#include "telemetry/stat_file.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp::dead_stat_files_test {
namespace {

constexpr const char* kDead = "harp-1-0123456789abcdef.stat";

TEST(DeadStatFiles, only_those_that_nobody_has_locked_are_removed) {
  const ScratchFolder folder;
  std::string error;
  const auto alive =
      StatFile::create(folder.path(), 2, {.max_sessions = 1, .max_paths = 1, .blocks = 1}, &error);
  ASSERT_NE(alive, nullptr) << error;
  folder.write(kDead, {});
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 1U);
  ASSERT_EQ(folder.names().size(), 1U);
  EXPECT_EQ(folder.file(folder.names()[0]), alive->path());
}

TEST(DeadStatFiles, what_is_not_a_file_of_ours_stays_and_is_not_waited_for) {
  const ScratchFolder folder;
  const ScratchFolder outside;
  outside.write(kDead, {});
  ASSERT_EQ(::mkfifo(folder.file("harp-1-0123456789abcde0.stat").c_str(), 0600), 0);
  std::filesystem::create_directory(folder.file("harp-1-0123456789abcde1.stat"));
  std::filesystem::create_symlink(outside.file(kDead), folder.file(kDead));
  for (const char* const name : {"harp-1-0123456789abcdef.other",
                                 "other-1-0123456789abcdef.stat",
                                 "harp--0123456789abcdef.stat",
                                 "harp-x-0123456789abcdef.stat",
                                 "harp-1-0123456789abcdex.stat",
                                 "harp-1-0123456789abcde.stat",
                                 "harp-1.stat"}) {
    folder.write(name, {});
  }
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 0U);
  EXPECT_EQ(folder.names().size(), 10U);
  EXPECT_EQ(outside.names().size(), 1U);
}

TEST(DeadStatFiles, a_folder_that_is_not_there_has_none) {
  EXPECT_EQ(remove_dead_stat_files("/nonexistent/folder"), 0U);
}

}  // namespace
}  // namespace harp::dead_stat_files_test
