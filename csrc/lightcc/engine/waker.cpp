#include "lightcc/engine/waker.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>

namespace lightcc {
namespace {

constexpr std::uint64_t kBellTag = ~std::uint64_t{0};
constexpr std::uint64_t kMailTag = kBellTag - 1;
constexpr auto kMaxWait = std::chrono::hours(1);

bool becomes_readable(int fd, Duration timeout) {
  pollfd entry{fd, POLLIN, 0};
  const auto nanoseconds = timeout.count() > 0 ? timeout.count() : 0;
  const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000),
                      static_cast<long>(nanoseconds % 1'000'000'000)};
  return ::ppoll(&entry, 1, &time, nullptr) > 0;
}

void empty(int bell) {
  eventfd_t rings = 0;
  (void)::eventfd_read(bell, &rings);
}

}  // namespace

Result<Waker> Waker::make(SleepWord& word, int bell) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd gate(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid() || !gate.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make an epoll descriptor");
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(gate.get(), EPOLL_CTL_ADD, epoll.get(), &event) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot watch an epoll descriptor");
  }
  Waker waker(word, bell, std::move(epoll), std::move(gate));
  LIGHTCC_RETURN_IF_ERROR(waker.watch(bell, kBellTag));
  return waker;
}

Status Waker::watch(HostMail& mail) {
  mail_ = &mail;
  return watch(mail.fd(), kMailTag);
}

Status Waker::watch(int fd, std::uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot watch descriptor %d", fd);
  }
  return {};
}

void Waker::unwatch(int fd) {
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::vector<std::uint64_t> Waker::ready() {
  if (num_events_ == 0) {
    collect(0);
  }
  std::vector<std::uint64_t> tags;
  for (std::size_t i = 0; i < num_events_; ++i) {
    const std::uint64_t tag = events_[i].data.u64;
    if (tag == kBellTag) {
      empty(bell_);
    } else if (tag == kMailTag) {
      mail_->collect();
    } else {
      tags.push_back(tag);
    }
  }
  num_events_ = 0;
  return tags;
}

void Waker::collect(int timeout_ms) {
  const int count =
      ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms);
  num_events_ = static_cast<std::size_t>(std::max(count, 0));
}

void Waker::wait(Duration timeout) {
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  if (whole.count() > 0) {
    collect(static_cast<int>(std::min(whole, std::chrono::milliseconds(kMaxWait)).count()));
  } else {
    (void)becomes_readable(epoll_.get(), timeout);
  }
}

bool Waker::wait_at_gate(Duration timeout) const {
  return becomes_readable(gate_.get(), timeout);
}

void Waker::shut_gate() {
  set_gate(false);
}

void Waker::open_gate() {
  set_gate(true);
}

void Waker::set_gate(bool open) {
  if (open == is_gate_open_) {
    return;
  }
  epoll_event event{};
  event.events = open ? EPOLLIN : 0U;
  // Fails for bad arguments only.
  (void)::epoll_ctl(gate_.get(), EPOLL_CTL_MOD, epoll_.get(), &event);
  is_gate_open_ = open;
}

void Waker::wait_for_bell(Duration timeout) const {
  if (becomes_readable(bell_, timeout)) {
    empty(bell_);
  }
}

}  // namespace lightcc
