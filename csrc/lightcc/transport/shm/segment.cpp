#include "lightcc/transport/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"

namespace lightcc {

namespace {

// Since Linux 6.3; implies MFD_ALLOW_SEALING. Some systems refuse memfds without it.
constexpr unsigned kNoExecSeal = 0x0008U;

Status no_memory(std::size_t bytes, int error_number) {
  return make_system_error(ErrorCode::kSystem,
                           error_number,
                           "cannot reserve %zu bytes of shared memory; raise the memory limit of "
                           "this container or machine",
                           bytes);
}

std::size_t physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) {
    return SIZE_MAX / 2;
  }
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
}

UniqueFd make_memfd() {
  UniqueFd fd(::memfd_create("lightcc", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal));
  if (!fd.valid() && errno == EINVAL) {
    fd = UniqueFd(::memfd_create("lightcc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  return fd;
}

}  // namespace

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : fd_(std::move(other.fd_)), memory_(std::exchange(other.memory_, {})) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  if (this != &other) {
    unmap();
    fd_ = std::move(other.fd_);
    memory_ = std::exchange(other.memory_, {});
  }
  return *this;
}

void ShmSegment::unmap() {
  if (!memory_.empty()) {
    (void)::munmap(memory_.data(), memory_.size());
    memory_ = {};
  }
}

Result<ShmSegment> ShmSegment::create(std::size_t bytes) {
  if (bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument, "a shared-memory segment needs a size");
  }
  // The kernel would try, and have the out-of-memory killer choose a process.
  if (bytes > physical_memory()) {
    return no_memory(bytes, ENOMEM);
  }
  UniqueFd fd = make_memfd();
  if (!fd.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "memfd_create for %zu bytes", bytes);
  }
  int error = 0;
  do {
    error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) {
    return no_memory(bytes, error);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return make_system_error(
        ErrorCode::kSystem, errno, "sealing %zu bytes of shared memory", bytes);
  }
  return map_pages(std::move(fd), bytes);
}

Result<ShmSegment> ShmSegment::map(UniqueFd fd, std::size_t bytes) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return make_error(ErrorCode::kPeerFailed,
                      "a peer passed a descriptor that is not a sealed shared-memory segment");
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "fstat of a shared-memory segment");
  }
  if (bytes == 0 || std::cmp_less(info.st_size, bytes)) {
    return make_error(ErrorCode::kPeerFailed,
                      "a peer passed a shared-memory segment of %lld bytes where %zu are needed",
                      static_cast<long long>(info.st_size),
                      bytes);
  }
  return map_pages(std::move(fd), bytes);
}

Result<ShmSegment> ShmSegment::map_pages(UniqueFd fd, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return no_memory(bytes, errno);
  }
  // Fewer address translations where the system allows huge pages in shared memory; else no effect.
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  ShmSegment segment;
  segment.fd_ = std::move(fd);
  segment.memory_ = {static_cast<std::byte*>(memory), bytes};
  return segment;
}

}  // namespace lightcc
