#include "telemetry/stat_file.hpp"

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sync/seq_words.hpp"
#include "telemetry/scratch_folder.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp::stat_file_test {
namespace {

constexpr std::array kFields{StatField{StatKind::kCounter, 0, "turns", "", ""}};
const StatLayout kLayout{.engine = kFields,
                         .session = kFields,
                         .path = kFields,
                         .max_sessions = 1,
                         .max_paths = 1,
                         .blocks = 2};

std::unique_ptr<StatFile> create(const std::string& folder, std::uint64_t name = 0xabc) {
  std::string error;
  auto file = StatFile::create(folder, name, kLayout, &error);
  EXPECT_NE(file, nullptr) << error;
  return file;
}

/// Never destroyed, and no leak: a process that ends has it still.
void keep(std::unique_ptr<StatFile> file) {
  static auto* const kKept = new std::vector<std::unique_ptr<StatFile>>();
  kKept->push_back(std::move(file));
}

/// Runs `body` in a child; how it ended.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(StatFile, is_its_users_alone_and_says_who_wrote_it) {
  const ScratchFolder folder;
  const auto file = create(folder.path());
  EXPECT_EQ(file->path(),
            folder.file("harp-" + std::to_string(::getpid()) + "-0000000000000abc.stat"));
  struct stat status{};
  ASSERT_EQ(::stat(file->path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), kLayout.file_bytes());
  const auto bytes = bytes_of_file(file->path());
  std::uint32_t pid = 0;
  std::memcpy(&pid, &bytes.at(16), sizeof(pid));
  EXPECT_EQ(pid, static_cast<std::uint32_t>(::getpid()));
}

TEST(StatFile, what_is_written_to_a_block_is_in_the_file) {
  const ScratchFolder folder;
  const auto file = create(folder.path());
  std::string error;
  const auto words = file->reserve_block(1, &error);
  ASSERT_EQ(words.size() * sizeof(std::uint64_t), kLayout.block_bytes()) << error;
  SeqWords(words).write(std::array<std::uint64_t, 2>{0x1234, 0x5678});
  const auto bytes = bytes_of_file(file->path());
  std::array<std::uint64_t, 3> read{};
  std::memcpy(read.data(), &bytes.at(kLayout.first_block() + kLayout.block_bytes()), sizeof(read));
  EXPECT_EQ(read, (std::array<std::uint64_t, 3>{2, 0x1234, 0x5678}));
  EXPECT_EQ(bytes.at(kLayout.first_block()), std::byte{0}) << "the other block was never written";
  EXPECT_TRUE(file->reserve_block(2, &error).empty());
  EXPECT_NE(error.find(file->path()), std::string::npos) << error;
}

TEST(StatFile, goes_with_its_owner) {
  const ScratchFolder folder;
  auto file = create(folder.path());
  const auto other = create(folder.path(), 2);
  EXPECT_EQ(folder.names().size(), 2U);
  const std::string path = file->path();
  file.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(other->path()));
}

TEST(StatFile, goes_with_a_process_that_exits_and_stays_behind_one_that_is_killed) {
  const ScratchFolder folder;
  EXPECT_EQ(in_child([&] {
              keep(create(folder.path()));
              std::exit(folder.names().size() == 1 ? 0 : 1);  // NOLINT(concurrency-mt-unsafe)
            }),
            0);
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(in_child([&] {
              keep(create(folder.path()));
              ::_exit(0);
            }),
            0);
  EXPECT_EQ(folder.names().size(), 1U);
  EXPECT_EQ(remove_dead_stat_files(folder.path()), 1U);
  EXPECT_TRUE(folder.names().empty());
}

TEST(StatFile, is_not_removed_by_the_child_of_a_fork) {
  const ScratchFolder folder;
  auto file = create(folder.path());
  EXPECT_EQ(in_child([&] { std::exit(0); }), 0);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_TRUE(std::filesystem::exists(file->path()));
  EXPECT_EQ(in_child([&] {
              file.reset();
              ::_exit(0);
            }),
            0);
  EXPECT_TRUE(std::filesystem::exists(file->path()));
}

TEST(StatFile, a_child_may_have_one_of_its_own) {
  const ScratchFolder folder;
  const auto file = create(folder.path());
  EXPECT_EQ(in_child([&] {
              keep(create(folder.path(), 3));
              std::exit(folder.names().size() == 2 ? 0 : 1);  // NOLINT(concurrency-mt-unsafe)
            }),
            0);
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(StatFile, a_folder_that_takes_none_is_named) {
  const ScratchFolder folder;
  folder.write("a-file", {});
  for (const std::string& where : {folder.file("nowhere"), folder.file("a-file")}) {
    std::string error;
    EXPECT_EQ(StatFile::create(where, 1, kLayout, &error), nullptr);
    EXPECT_TRUE(error.starts_with(where + "/harp-")) << error;
  }
}

TEST(StatFile, never_takes_a_file_that_is_there) {
  const ScratchFolder folder;
  const auto file = create(folder.path());
  std::string error;
  EXPECT_EQ(StatFile::create(folder.path(), 0xabc, kLayout, &error), nullptr);
  EXPECT_NE(error.find("exists"), std::string::npos) << error;
  EXPECT_TRUE(std::filesystem::exists(file->path()));
}

}  // namespace
}  // namespace harp::stat_file_test
