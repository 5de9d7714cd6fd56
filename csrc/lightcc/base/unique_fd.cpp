#include "lightcc/base/unique_fd.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lightcc {
namespace {

// One bit per descriptor number. Numbers beyond (the limit on most machines is lower) are closed by
// their owner but not by the fork guard.
constexpr std::size_t kTracked = 1 << 16;
constexpr std::size_t kBits = 64;
std::array<std::atomic<std::uint64_t>, kTracked / kBits> owned{};

bool in_range(int fd) {
  return fd >= 0 && static_cast<std::size_t>(fd) < kTracked;
}
std::atomic<std::uint64_t>& word_of(int fd) {
  return owned[static_cast<std::size_t>(fd) / kBits];
}
std::uint64_t bit_of(int fd) {
  return std::uint64_t{1} << (static_cast<std::size_t>(fd) % kBits);
}

}  // namespace

void UniqueFd::track(int fd) {
  if (in_range(fd)) {
    word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
  }
}

bool UniqueFd::untrack(int fd) {
  if (!in_range(fd)) {
    return fd >= 0;
  }
  return (word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed) & bit_of(fd)) != 0;
}

void UniqueFd::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && untrack(fd)) {
    ::close(fd);
  }
}

void UniqueFd::close_all_in_child() {
  for (std::size_t i = 0; i < owned.size(); ++i) {
    std::uint64_t bits = owned[i].exchange(0, std::memory_order_relaxed);
    for (std::size_t bit = 0; bits != 0; ++bit, bits >>= 1) {
      if ((bits & 1) != 0) {
        ::close(static_cast<int>(i * kBits + bit));
      }
    }
  }
}

}  // namespace lightcc
