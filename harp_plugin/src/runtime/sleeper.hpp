// Where a thread sleeps until packets arrive, time has come, or somebody wakes it.
#pragma once

#include <span>

#include "base/time.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {

class Sleeper {
 public:
  /// Throws std::system_error where there is no descriptor left.
  Sleeper();

  /// Blocks until wake(), a descriptor is readable, or `until`. A wake() that comes first counts.
  void sleep(std::span<const int> descriptors, Time until);
  /// Thread: any. A system call.
  void wake();

 private:
  UniqueFd event_;
};

}  // namespace harp
