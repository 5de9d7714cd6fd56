// What processes that were killed have left behind.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "datapath/unique_fd.hpp"
#include "telemetry/process.hpp"
#include "telemetry/stat_file.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp {
namespace {

/// A file without a head is being made, or its maker died in between; after so long, the latter.
constexpr std::time_t kLongestMakingS = 60;

bool has_our_name(std::string_view name) {
  return name.starts_with("harp-") && name.ends_with(".stat");
}

bool is_dead(int folder, const char* name) {
  // Anybody may put anything into such a folder: no link is followed, no pipe is waited for.
  const UniqueFd file(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid()) {
    return false;
  }
  std::array<std::byte, StatLayout::kHeadBytes> head{};
  const ssize_t count = ::pread(file.get(), head.data(), head.size(), 0);
  if (count < 0) {
    return false;
  }
  const auto read = std::span(head).first(static_cast<std::size_t>(count));
  if (std::ranges::all_of(read, [](std::byte one) { return one == std::byte{0}; })) {
    return std::time(nullptr) - status.st_mtime > kLongestMakingS;
  }
  const auto writer = parse_stat_writer(read);
  return writer && look_for(*writer) == ProcessLife::kDead;
}

}  // namespace

std::size_t remove_dead_stat_files(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), &::closedir);
  std::size_t removed = 0;
  if (open == nullptr) {
    return removed;
  }
  const int descriptor = ::dirfd(open.get());
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this thread's.
  while (const dirent* const entry = ::readdir(open.get())) {
    const char* const name = std::data(entry->d_name);
    if (has_our_name(name) && is_dead(descriptor, name) && ::unlinkat(descriptor, name, 0) == 0) {
      ++removed;
    }
  }
  return removed;
}

}  // namespace harp
