// Where a thread sleeps until packets arrive, time has come, or somebody wakes it.
#pragma once

#include <span>

#include "base/time.hpp"
#include "datapath/event_fd.hpp"

namespace harp {

class Sleeper {
 public:
  /// Blocks until wake(), a descriptor is readable, or `until`. A wake() that comes first counts.
  void sleep(std::span<const int> descriptors, Time until);
  /// Thread: any. A system call.
  void wake() { event_.signal(); }

 private:
  EventFd event_;
};

}  // namespace harp
