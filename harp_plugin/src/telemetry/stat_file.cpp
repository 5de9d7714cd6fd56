#include "telemetry/stat_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "datapath/unique_fd.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp {
namespace {

std::string refusal(const std::string& path, int error) {
  return path + ": " + std::generic_category().message(error);
}

std::string hex(std::uint64_t value) {
  constexpr int kDigits = 16;
  std::string text;
  for (int i = 0; i < kDigits; ++i) {
    text.insert(text.begin(), "0123456789abcdef"[value & 15]);
    value >>= 4;
  }
  return text;
}

std::uint64_t unix_now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

/// Beyond this limit a signal would come instead of an error.
bool may_be_so_large(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         bytes <= limit.rlim_cur;
}

/// Where the file system is full, writing to memory that was not reserved would be a signal, too.
int reserve(int file, std::size_t from, std::size_t bytes) {
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(file, static_cast<off_t>(from), static_cast<off_t>(bytes));
  }
  return error;
}

}  // namespace

// Files that an orderly exit() removes are in a list that only grows, without a lock: the child of
// a fork may call exit() as well, when a lock might be held for ever by a thread that it has not
// got.
struct StatFile::Removal {
  std::string path;
  pid_t owner;
  std::atomic<bool> is_due{true};
  Removal* next = nullptr;
};

std::atomic<StatFile::Removal*> StatFile::removals{nullptr};

std::unique_ptr<StatFile> StatFile::create(const std::string& folder,
                                           std::uint64_t name,
                                           const StatLayout& layout,
                                           std::string* error) {
  const std::string path =
      folder + "/harp-" + std::to_string(::getpid()) + "-" + hex(name) + ".stat";
  if (!may_be_so_large(layout.file_bytes())) {
    *error = refusal(path, EFBIG);
    return nullptr;
  }
  constexpr mode_t kOwnerOnly = 0600;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!file.is_open() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    *error = refusal(path, errno);
    return nullptr;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is private.
  std::unique_ptr<StatFile> made(new StatFile(path, std::move(file), layout));
  return made->write_head(error) ? std::move(made) : nullptr;
}

StatFile::StatFile(std::string path, UniqueFd file, const StatLayout& layout)
    : path_(std::move(path)), file_(std::move(file)), layout_(layout), removal_(remember(path_)) {}

StatFile::~StatFile() {
  remove(*removal_);
  if (memory_ != nullptr) {
    ::munmap(memory_, layout_.file_bytes());
  }
}

bool StatFile::write_head(std::string* error) {
  const auto head =
      encode_stat_head(layout_, static_cast<std::uint32_t>(::getpid()), unix_now_ns());
  int problem = 0;
  if (::ftruncate(file_.get(), static_cast<off_t>(layout_.file_bytes())) != 0) {
    problem = errno;
  } else {
    problem = reserve(file_.get(), 0, head.size());
  }
  // In one piece, so that a reader finds all of it or nothing.
  if (problem == 0 &&
      ::pwrite(file_.get(), head.data(), head.size(), 0) != static_cast<ssize_t>(head.size())) {
    problem = ENOSPC;
  }
  void* memory = MAP_FAILED;
  if (problem == 0) {
    memory = ::mmap(
        nullptr, layout_.file_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), /*off=*/0);
    problem = memory == MAP_FAILED ? errno : 0;
  }
  if (problem != 0) {
    *error = refusal(path_, problem);
    return false;
  }
  memory_ = static_cast<std::byte*>(memory);
  return true;
}

std::span<std::uint64_t> StatFile::reserve_block(std::size_t index, std::string* error) {
  const std::size_t from = layout_.first_block() + index * layout_.block_bytes();
  const int problem =
      index < layout_.blocks ? reserve(file_.get(), from, layout_.block_bytes()) : EINVAL;
  if (problem != 0) {
    *error = refusal(path_, problem);
    return {};
  }
  return {reinterpret_cast<std::uint64_t*>(memory_ + from),
          layout_.block_bytes() / sizeof(std::uint64_t)};
}

StatFile::Removal* StatFile::remember(const std::string& path) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the list's, for ever.
  auto* const removal = new Removal{.path = path, .owner = ::getpid()};
  Removal* first = removals.load(std::memory_order_relaxed);
  do {
    removal->next = first;  // Seen by who finds `removal` in front: release, and remove_all().
  } while (!removals.compare_exchange_weak(
      first, removal, std::memory_order_release, std::memory_order_relaxed));
  if (first == nullptr) {
    (void)std::atexit(&StatFile::remove_all);
  }
  return removal;
}

void StatFile::remove(Removal& removal) {
  if (removal.owner == ::getpid() && removal.is_due.exchange(false, std::memory_order_relaxed)) {
    (void)::unlink(removal.path.c_str());
  }
}

void StatFile::remove_all() {
  Removal* removal = removals.load(std::memory_order_acquire);  // With remember()'s release.
  for (; removal != nullptr; removal = removal->next) {
    remove(*removal);
  }
}

}  // namespace harp
