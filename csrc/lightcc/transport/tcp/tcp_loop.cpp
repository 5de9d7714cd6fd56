#include "lightcc/transport/tcp/tcp_loop.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace lightcc {
namespace {

constexpr WatchToken kKickToken = 0;
constexpr WatchToken kTimerToken = 1;
constexpr WatchToken kFirstSinkToken = 2;

// Events taken by one system call, and how many calls one poll() makes at most.
constexpr std::size_t kEventBatch = 64;
constexpr int kMaxBatches = 16;

// Under a rate limit: sending less than this at once wastes system calls; sending more than the
// other one lets one channel push the others aside.
constexpr std::size_t kSmallestGrant = std::size_t{16} << 10;
constexpr std::size_t kLargestGrant = std::size_t{64} << 10;

template <typename Container>
void erase_value(Container& container, const EventSink* sink) {
  container.erase(std::remove(container.begin(), container.end(), sink), container.end());
}

}  // namespace

Result<std::shared_ptr<TcpLoop>> TcpLoop::make(std::int64_t rate_bytes_per_s, const Clock& clock) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd kick(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll.valid() || !kick.valid() || !timer.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "TCP transport: no descriptors to wait on");
  }
  auto loop = std::make_shared<TcpLoop>(
      std::move(epoll), std::move(kick), std::move(timer), rate_bytes_per_s, clock);
  LIGHTCC_RETURN_IF_ERROR(loop->watch_own_descriptors());
  return loop;
}

TcpLoop::TcpLoop(UniqueFd epoll,
                 UniqueFd kick,
                 UniqueFd timer,
                 std::int64_t rate_bytes_per_s,
                 const Clock& clock)
    : epoll_(std::move(epoll)),
      kick_(std::move(kick)),
      timer_(std::move(timer)),
      clock_(clock),
      bucket_(rate_bytes_per_s, clock.now()),
      next_token_(kFirstSinkToken) {}

Status TcpLoop::watch_own_descriptors() {
  // Edge-triggered: a new write or a new expiry is an event of its own, so nobody reads them empty.
  for (const auto& [fd, token] :
       {std::pair{kick_.get(), kKickToken}, std::pair{timer_.get(), kTimerToken}}) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = token;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return make_system_error(ErrorCode::kSystem, errno, "TCP transport: epoll_ctl");
    }
  }
  return {};
}

void TcpLoop::join(EventSink& sink) {
  sinks_.push_back(&sink);
}

void TcpLoop::leave(EventSink& sink) {
  erase_value(sinks_, &sink);
  erase_value(ready_, &sink);
  erase_value(token_waiters_, &sink);
  std::erase_if(watches_, [&](const auto& entry) { return entry.second.sink == &sink; });
}

Result<WatchToken> TcpLoop::watch(int fd,
                                  std::uint32_t events,
                                  EventSink& sink,
                                  std::uint32_t index) {
  const WatchToken token = next_token_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "TCP transport: epoll_ctl");
  }
  watches_.emplace(token, Watch{&sink, index, fd});
  return token;
}

void TcpLoop::unwatch(int fd, WatchToken token) {
  if (watches_.erase(token) != 0) {
    // Fails only when the descriptor's owner closed it first, which removed it too.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

std::uint64_t TcpLoop::retransmits() const {
  std::uint64_t sum = 0;
  for (const auto& entry : watches_) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(entry.second.fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) {
      sum += info.tcpi_total_retrans;
    }
  }
  return sum;
}

void TcpLoop::enqueue(EventSink& sink) {
  if (!sink.enqueued_) {
    sink.enqueued_ = true;
    ready_.push_back(&sink);
  }
  if (!polling_) {
    kick();
  }
}

void TcpLoop::kick() {
  if (!kicked_) {
    kicked_ = true;
    // The counter cannot overflow: 2^64 writes.
    (void)::eventfd_write(kick_.get(), 1);
  }
}

void TcpLoop::wake_at(TimePoint when) {
  if (!alarm_ || when < *alarm_) {
    alarm_ = when;
    set_timer(clock_.now());
  }
}

void TcpLoop::set_timer(TimePoint now) {
  // Relative, because an injected clock has another epoch; a timer of 0 would be switched off.
  const auto rest = std::max(*alarm_ - now, Duration(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(rest);
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(seconds.count());
  spec.it_value.tv_nsec = static_cast<long>((rest - seconds).count());
  (void)::timerfd_settime(timer_.get(), 0, &spec, nullptr);  // Fails for bad arguments only.
}

void TcpLoop::check_alarm() {
  if (!alarm_) {
    return;
  }
  const TimePoint now = clock_.now();
  if (now < *alarm_) {
    return;
  }
  alarm_.reset();
  for (EventSink* sink : sinks_) {
    sink->on_time(now);
  }
}

std::size_t TcpLoop::grant(std::size_t wanted, EventSink& sink) {
  if (bucket_.unlimited()) {
    return wanted;
  }
  const bool has_turn = served_ == &sink;
  served_ = nullptr;  // One grant per turn; then the others come first.
  if (!has_turn && !token_waiters_.empty()) {
    await_tokens(sink);
    return 0;
  }
  const TimePoint now = clock_.now();
  const auto tokens = static_cast<std::size_t>(bucket_.available(now));
  if (tokens < std::min(wanted, kSmallestGrant)) {
    await_tokens(sink);
    wake_at(now + bucket_.time_until(std::int64_t{kSmallestGrant}));
    return 0;
  }
  return std::min({wanted, tokens, kLargestGrant});
}

void TcpLoop::count_sent(std::size_t bytes) {
  bytes_sent_ += bytes;
  bucket_.spend(bytes);
}

void TcpLoop::await_tokens(EventSink& sink) {
  if (!sink.awaits_tokens_) {
    sink.awaits_tokens_ = true;
    token_waiters_.push_back(&sink);
  }
}

// Afterwards, whoever still waits has an alarm or a kick coming.
bool TcpLoop::serve_token_waiters() {
  bool moved = false;
  // Each waiter at most once: one that cannot use its turn must not spin here.
  for (std::size_t left = token_waiters_.size(); left > 0 && has_tokens(); --left) {
    EventSink* sink = token_waiters_.front();
    token_waiters_.pop_front();
    sink->awaits_tokens_ = false;
    served_ = sink;
    moved = sink->pump() || moved;
    served_ = nullptr;
  }
  if (!token_waiters_.empty() && has_tokens()) {
    kick();
  }
  return moved;
}

// Sets the alarm for when there are, otherwise.
bool TcpLoop::has_tokens() {
  const TimePoint now = clock_.now();
  constexpr auto kEnough = std::int64_t{kSmallestGrant};
  if (bucket_.available(now) >= kEnough) {
    return true;
  }
  wake_at(now + bucket_.time_until(kEnough));
  return false;
}

Result<bool> TcpLoop::collect() {
  std::array<epoll_event, kEventBatch> events;  // NOLINT: filled by epoll_wait()
  bool found = false;
  for (int batch = 0; batch < kMaxBatches; ++batch) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(kEventBatch), 0);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return make_system_error(ErrorCode::kSystem, errno, "TCP transport: epoll_wait");
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const WatchToken token = events[i].data.u64;
      if (token == kKickToken) {
        kicked_ = false;
        continue;
      }
      if (token == kTimerToken) {
        if (alarm_ && clock_.now() < *alarm_) {
          set_timer(clock_.now());  // Too early, by an injected clock.
        }
        continue;
      }
      if (const auto watch = watches_.find(token); watch != watches_.end()) {
        found = true;
        EventSink& sink = *watch->second.sink;
        sink.on_event(watch->second.index, events[i].events);
        enqueue(sink);
      }
    }
    if (static_cast<std::size_t>(count) < kEventBatch) {
      break;
    }
  }
  return found;
}

Result<bool> TcpLoop::poll() {
  polling_ = true;
  auto collected = collect();
  if (!collected.ok()) {
    polling_ = false;
    return collected.status();
  }
  bool moved = *collected;
  check_alarm();
  if (!token_waiters_.empty()) {
    moved = serve_token_waiters() || moved;
  }
  pumping_.swap(ready_);
  for (EventSink* sink : pumping_) {
    sink->enqueued_ = false;
    moved = sink->pump() || moved;
  }
  pumping_.clear();
  polling_ = false;
  if (!ready_.empty()) {
    kick();
  }
  return moved;
}

}  // namespace lightcc
