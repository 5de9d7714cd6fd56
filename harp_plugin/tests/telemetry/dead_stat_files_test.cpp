#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "telemetry/process.hpp"
#include "telemetry/scratch_folder.hpp"
#include "telemetry/stat_file.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp::dead_stat_files_test {
namespace {

std::vector<std::byte> head_of(const ProcessIdentity& writer) {
  return encode_stat_head({.max_sessions = 1, .max_paths = 1, .blocks = 1}, writer, 0);
}

ProcessIdentity dead() {
  ProcessIdentity identity = own_identity();
  ++identity.start_ticks;
  return identity;
}

bool has(const ScratchFolder& folder, const std::string& name) {
  return std::ranges::count(folder.names(), name) == 1;
}

TEST(DeadStatFiles, only_those_of_processes_that_have_ended_are_removed) {
  const ScratchFolder folder;
  ProcessIdentity elsewhere = dead();
  ++elsewhere.pid_namespace;
  folder.write("harp-1-dead.stat", head_of(dead()));
  folder.write("harp-2-alive.stat", head_of(own_identity()));
  folder.write("harp-3-elsewhere.stat", head_of(elsewhere));
  folder.write("harp-4-dead.other", head_of(dead()));
  folder.write("other-5-dead.stat", head_of(dead()));
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 1U);
  EXPECT_FALSE(has(folder, "harp-1-dead.stat"));
  EXPECT_EQ(folder.names().size(), 4U);
}

TEST(DeadStatFiles, what_is_not_a_file_of_ours_stays_and_is_not_waited_for) {
  const ScratchFolder folder;
  const ScratchFolder outside;
  outside.write("harp-1-dead.stat", head_of(dead()));
  ASSERT_EQ(::mkfifo(folder.file("harp-1-pipe.stat").c_str(), 0600), 0);
  std::filesystem::create_directory(folder.file("harp-2-folder.stat"));
  std::filesystem::create_symlink(outside.file("harp-1-dead.stat"), folder.file("harp-3-l.stat"));
  auto damaged = head_of(dead());
  damaged[0] = std::byte{'h'};
  folder.write("harp-4-damaged.stat", damaged);
  damaged = head_of(dead());
  damaged.resize(55);
  folder.write("harp-5-cut.stat", damaged);
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 0U);
  EXPECT_EQ(folder.names().size(), 5U);
  EXPECT_EQ(outside.names().size(), 1U);
}

TEST(DeadStatFiles, one_without_a_head_is_given_time) {
  const ScratchFolder folder;
  folder.write("harp-1-empty.stat", {});
  folder.write("harp-2-zero.stat", std::vector<std::byte>(4096));
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 0U);
  const std::array<timeval, 2> long_ago{{{.tv_sec = 1, .tv_usec = 0}, {.tv_sec = 1, .tv_usec = 0}}};
  for (const std::string& name : folder.names()) {
    ASSERT_EQ(::utimes(folder.file(name).c_str(), long_ago.data()), 0);
  }
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 2U);
}

TEST(DeadStatFiles, a_folder_that_is_not_there_has_none) {
  EXPECT_EQ(remove_dead_stat_files("/nonexistent/folder"), 0U);
}

}  // namespace
}  // namespace harp::dead_stat_files_test
