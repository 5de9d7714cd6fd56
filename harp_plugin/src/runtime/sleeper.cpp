#include "runtime/sleeper.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <span>
#include <system_error>
#include <vector>

#include "base/time.hpp"
#include "datapath/unique_fd.hpp"
#include "runtime/clock.hpp"

namespace harp {

Sleeper::Sleeper() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_.is_open()) {
    throw std::system_error(errno, std::system_category(), "eventfd");
  }
}

void Sleeper::sleep(std::span<const int> descriptors, Time until) {
  std::vector<pollfd> watched{{.fd = event_.get(), .events = POLLIN, .revents = 0}};
  for (const int descriptor : descriptors) {
    watched.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  }
  constexpr std::int64_t kNsPerS = 1'000'000'000;
  timespec timeout{};
  if (until != kNever) {
    const std::int64_t left_ns = std::max<std::int64_t>((until - clock_now()).count(), 0);
    timeout = {.tv_sec = left_ns / kNsPerS, .tv_nsec = left_ns % kNsPerS};
  }
  (void)::ppoll(
      watched.data(), watched.size(), until == kNever ? nullptr : &timeout, /*sigmask=*/nullptr);
  if ((watched.front().revents & POLLIN) != 0) {
    std::uint64_t count = 0;
    (void)(::read(event_.get(), &count, sizeof(count)) < 0);
  }
}

void Sleeper::wake() {
  const std::uint64_t one = 1;
  (void)(::write(event_.get(), &one, sizeof(one)) < 0);  // Full means awake.
}

}  // namespace harp
