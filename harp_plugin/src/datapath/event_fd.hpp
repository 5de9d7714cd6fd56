// A descriptor that becomes readable when somebody signals: how a thread that sleeps in poll() is
// woken.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "datapath/unique_fd.hpp"

namespace harp {

class EventFd {
 public:
  /// Throws std::system_error where there is no descriptor left.
  EventFd() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!fd_.is_open()) {
      throw std::system_error(errno, std::system_category(), "eventfd");
    }
  }
  int get() const { return fd_.get(); }
  /// Thread: any. It stays readable until drain().
  void signal() {
    const std::uint64_t one = 1;
    (void)(::write(fd_.get(), &one, sizeof(one)) < 0);  // Full means signalled.
  }
  void drain() {
    std::uint64_t count = 0;
    (void)(::read(fd_.get(), &count, sizeof(count)) < 0);  // Nobody has signalled, perhaps.
  }

 private:
  UniqueFd fd_;
};

}  // namespace harp
