#include "lightcc/net/poller.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace lightcc {

Result<Poller> Poller::make() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make an epoll descriptor");
  }
  return Poller(std::move(fd));
}

Status Poller::add(int fd, std::uint32_t events, std::uint64_t tag) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot watch a descriptor");
  }
  return {};
}

Status Poller::modify(int fd, std::uint32_t events, std::uint64_t tag) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot change what is watched");
  }
  return {};
}

void Poller::remove(int fd) const {
  // Fails only for a descriptor that is not watched, which is what the caller wants.
  (void)::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Result<std::span<const epoll_event>> Poller::wait(Events& events, int timeout_ms) const {
  const int count =
      ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) {
    return make_system_error(ErrorCode::kSystem, errno, "epoll_wait failed");
  }
  return std::span<const epoll_event>(events.data(), static_cast<std::size_t>(std::max(count, 0)));
}

Result<Timer> Timer::make() {
  UniqueFd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make a timer descriptor");
  }
  return Timer(std::move(fd));
}

void Timer::arm(TimePoint deadline, TimePoint now) {
  // A time of zero would disarm it.
  const auto delay = std::max<Duration>(deadline - now, std::chrono::nanoseconds(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay);
  itimerspec spec{};
  spec.it_value.tv_sec = seconds.count();
  spec.it_value.tv_nsec = (delay - seconds).count();
  (void)::timerfd_settime(
      fd_.get(), 0, &spec, nullptr);  // Fails for a bad descriptor or time only.
}

void Timer::disarm() {
  const itimerspec spec{};
  (void)::timerfd_settime(fd_.get(), 0, &spec, nullptr);
}

Result<UniqueFd> make_stream_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make a socket");
  }
  return fd;
}

void tune_stream_socket(int fd, int family) {
  if (family == AF_UNIX) {
    return;
  }
  // Each of these is an improvement that the connection can do without, so failures are ignored.
  const auto set = [fd](int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

int milliseconds_until(TimePoint deadline, TimePoint now) {
  if (deadline <= now) {
    return 0;
  }
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
  return static_cast<int>(std::min<std::int64_t>(rest.count(), INT_MAX));
}

}  // namespace lightcc
