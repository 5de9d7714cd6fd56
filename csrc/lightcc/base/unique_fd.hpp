// A file descriptor with one owner, known to the fork guard.
//
// After fork() the child must keep no socket of the engine open: a peer that waits for this rank's
// connections to close would wait for its DataLoader workers too. Every UniqueFd is therefore in a
// process-wide set that the child closes at once (close_all_in_child, async-signal-safe); a
// UniqueFd that the child inherited closes nothing any more, since its number may have been given
// out again.
#pragma once

#include <utility>

namespace lightcc {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) { track(fd_); }
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  /// Gives up ownership; the caller closes it.
  int release() {
    untrack(fd_);
    return std::exchange(fd_, -1);
  }
  void reset();

  /// In the child of fork(): closes every descriptor that any UniqueFd owns.
  static void close_all_in_child();

 private:
  static void track(int fd);
  static bool untrack(int fd);  // False when it was not tracked: it is not ours to close.

  int fd_ = -1;
};

}  // namespace lightcc
