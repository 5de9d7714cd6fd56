// What processes that were killed have left behind.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "datapath/unique_fd.hpp"
#include "telemetry/stat_file.hpp"

namespace harp {
namespace {

/// "harp-PID-RANDOM.stat".
bool has_our_name(std::string_view name) {
  constexpr std::string_view kBegin = "harp-";
  constexpr std::string_view kEnd = ".stat";
  constexpr std::size_t kRandomDigits = 16;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) {
    return false;
  }
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  const std::size_t pid = name.find_first_not_of("0123456789");
  return pid != 0 && pid != std::string_view::npos && name[pid] == '-' &&
         name.size() == pid + 1 + kRandomDigits &&
         name.find_first_not_of("0123456789abcdef", pid + 1) == std::string_view::npos;
}

bool is_dead(int folder, const char* name) {
  // Anybody may put anything into such a folder: no link is followed, no pipe is waited for.
  const UniqueFd file(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  return file.is_open() && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
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
