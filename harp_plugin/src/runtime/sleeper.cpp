#include "runtime/sleeper.hpp"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <span>
#include <vector>

#include "base/time.hpp"
#include "runtime/clock.hpp"

namespace harp {

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
    event_.drain();
  }
}

}  // namespace harp
