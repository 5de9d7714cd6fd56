// What the channels of one plugin transport share: who is there, when to poll again, the counters.
//
// A plugin has no descriptor to sleep on; it works when it is called. So the loop has a timer for a
// descriptor. It is armed when somebody is about to sleep while something is outstanding, and not
// otherwise: who polls all the time needs no timer, which would only wake another thread beside
// him, and an idle transport is at rest (from the second poll on that finds nothing outstanding,
// since the first is often followed by the next request). Its interval is an eighth of the time for
// which nothing has moved (20 us to 1 ms), so that waiting for a late peer costs little time and
// little processor.
//
// Time for timeouts counts only as far as somebody polled: a process that was stopped for a minute
// must not blame its peers for that.
//
// Thread: one, the owner's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"

namespace lightcc {

/// Something that calls the plugin. None of the calls may make or destroy one.
class PluginSink {
 public:
  PluginSink() = default;
  PluginSink(const PluginSink&) = delete;
  PluginSink& operator=(const PluginSink&) = delete;
  virtual ~PluginSink() = default;

  /// Whether pump() may find something to do, now or later.
  virtual bool is_active() const = 0;
  /// Does what can be done now. True when anything moved.
  virtual bool pump() = 0;
  /// Nobody is active, and nobody has become so since the last poll.
  virtual void rest() {}
};

class PluginLoop {
 public:
  static Result<std::shared_ptr<PluginLoop>> make(const Clock& clock);
  /// For make().
  PluginLoop(UniqueFd timer, const Clock& clock) : timer_(std::move(timer)), clock_(clock) {}

  int wait_fd() const { return timer_.get(); }
  void join(PluginSink& sink);
  void leave(PluginSink& sink);
  /// Something was asked for outside of poll().
  void expect_work();

  /// Time that was polled through, for timeouts.
  Duration attended() const { return attended_; }
  void count_sent(std::size_t bytes) { bytes_sent_ += bytes; }
  void count_received(std::size_t bytes) { bytes_received_ += bytes; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  std::uint64_t bytes_received() const { return bytes_received_; }

  /// Pumps whoever is active. True when anything moved.
  bool poll();
  /// Somebody is about to sleep on wait_fd(), since poll() moved nothing.
  void prepare_to_wait();

 private:
  void arm(TimePoint now, Duration interval);
  void disarm();

  UniqueFd timer_;
  const Clock& clock_;
  std::vector<PluginSink*> sinks_;
  bool is_at_rest_ = true;
  bool is_armed_ = false;
  bool was_active_ = false;
  TimePoint due_{};
  TimePoint moved_{};  ///< When something last moved, or there was nothing to wait for.
  TimePoint polled_{};
  Duration attended_{};
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
};

}  // namespace lightcc
