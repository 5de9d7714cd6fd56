// What every event-driven part of the engine needs of Linux: epoll, a timer descriptor, socket
// options.
//
// A Poller is level-triggered and itself a pollable descriptor, so that one can watch another. Each
// watched descriptor carries a 64-bit tag; what the tag means is the owner's business.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"

namespace lightcc {

/// Thread: one.
class Poller {
 public:
  static Result<Poller> make();

  int fd() const { return fd_.get(); }
  /// `events`: EPOLLIN and the like; EPOLLERR and EPOLLHUP always are.
  Status add(int fd, std::uint32_t events, std::uint64_t tag) const;
  Status modify(int fd, std::uint32_t events, std::uint64_t tag) const;
  void remove(int fd) const;

  using Events = std::array<epoll_event, 32>;
  /// Fills the front of `events` with what is ready. `timeout_ms`: 0 never blocks, -1 for ever. A
  /// signal looks like nothing being ready.
  Result<std::span<const epoll_event>> wait(Events& events, int timeout_ms) const;

 private:
  explicit Poller(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

/// A descriptor that becomes readable at a point in time. Thread: one.
class Timer {
 public:
  static Result<Timer> make();

  int fd() const { return fd_.get(); }
  /// Readable from `deadline` on, until armed again; `now` is the clock that `deadline` belongs to.
  void arm(TimePoint deadline, TimePoint now);
  void disarm();

 private:
  explicit Timer(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

/// A non-blocking, close-on-exec stream socket.
Result<UniqueFd> make_stream_socket(int family);
/// Sends small messages at once, and notices within about two minutes that the other host is gone.
/// Does nothing on Unix sockets.
void tune_stream_socket(int fd, int family);
/// Whether `error_number` means "not now".
bool would_block(int error_number);
/// Milliseconds for poll() from `now` to `deadline`, rounded up; 0 when it has passed.
int milliseconds_until(TimePoint deadline, TimePoint now);

}  // namespace lightcc
