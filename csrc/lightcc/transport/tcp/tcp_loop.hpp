// What the channels of one TCP transport share: the epoll descriptor, the list of who has something
// to do, the alarm, the rate limit and the counters.
//
// Sockets are watched edge-triggered. A readiness that nobody can use now (data for a receive that
// is not posted, room with nothing to send) is remembered by its channel and leaves the epoll
// descriptor quiet, so an idle transport never wakes its owner. The other direction is the
// invariant to keep: whoever stops early although more could be done (a budget ran out) must
// enqueue() itself, which makes the descriptor readable again. What becomes usable through a call
// of the owner (a post, a release) is used within that call.
//
// Thread: one, the owner's. It does not handle descriptors duplicated into forked children: they
// must be closed there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/tcp/token_bucket.hpp"

namespace lightcc {

/// Something that owns watched descriptors. None of the calls may destroy a sink.
class EventSink {
 public:
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;
  virtual ~EventSink() = default;

  /// Readiness of the descriptor that was watched under `index`: to be remembered; pump() follows.
  virtual void on_event(std::uint32_t index, std::uint32_t events) = 0;
  /// Does what can be done now, within a budget. True when anything moved.
  virtual bool pump() = 0;
  /// An alarm (anybody's) went off: look at deadlines, set the next alarm.
  virtual void on_time(TimePoint now) = 0;

 private:
  friend class TcpLoop;
  bool enqueued_ = false;
  bool awaits_tokens_ = false;
};

/// Names one watched descriptor; never used twice, so an event that comes late finds nobody.
using WatchToken = std::uint64_t;

class TcpLoop {
 public:
  static Result<std::shared_ptr<TcpLoop>> make(std::int64_t rate_bytes_per_s, const Clock& clock);
  /// For make().
  TcpLoop(UniqueFd epoll,
          UniqueFd kick,
          UniqueFd timer,
          std::int64_t rate_bytes_per_s,
          const Clock& clock);

  const Clock& clock() const { return clock_; }
  int wait_fd() const { return epoll_.get(); }

  void join(EventSink& sink);
  void leave(EventSink& sink);
  /// Watches `fd` for `events` (EPOLLIN, ...; EPOLLET is the caller's choice) on behalf of `sink`.
  Result<WatchToken> watch(int fd, std::uint32_t events, EventSink& sink, std::uint32_t index);
  void unwatch(int fd, WatchToken token);
  /// Has `sink` pumped by the next poll(), and makes the descriptor readable until then.
  void enqueue(EventSink& sink);
  /// on_time() of all sinks, at `when` or soon after.
  void wake_at(TimePoint when);

  /// How many of `wanted` (at least 1) bytes `sink` may send now. When 0, the loop pumps the sink
  /// as soon as it may.
  std::size_t grant(std::size_t wanted, EventSink& sink);
  void count_sent(std::size_t bytes);
  void count_received(std::size_t bytes) { bytes_received_ += bytes; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  std::uint64_t bytes_received() const { return bytes_received_; }
  /// As TCP_INFO has it, of the sockets that are watched now.
  std::uint64_t retransmits() const;

  /// Collects events and pumps whoever has something to do. True when anything moved.
  Result<bool> poll();

 private:
  struct Watch {
    EventSink* sink = nullptr;
    std::uint32_t index = 0;
    int fd = -1;
  };

  Status watch_own_descriptors();
  Result<bool> collect();
  void check_alarm();
  void set_timer(TimePoint now);
  void kick();
  bool serve_token_waiters();
  bool has_tokens();
  void await_tokens(EventSink& sink);

  UniqueFd epoll_;
  UniqueFd kick_;
  UniqueFd timer_;
  const Clock& clock_;
  TokenBucket bucket_;
  WatchToken next_token_;
  std::unordered_map<WatchToken, Watch> watches_;
  std::vector<EventSink*> sinks_;
  std::vector<EventSink*> ready_;
  std::vector<EventSink*> pumping_;  ///< ready_ of the poll() under way; kept for its memory.
  std::deque<EventSink*> token_waiters_;
  EventSink* served_ = nullptr;  ///< Whose turn it is among those who waited for tokens.
  std::optional<TimePoint> alarm_;
  bool polling_ = false;
  bool kicked_ = false;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
};

}  // namespace lightcc
