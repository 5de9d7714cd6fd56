// Virtual time: a clock that jumps from event to event, and the queue of what is to happen.
//
// Everything in a simulation is an Actor: it asks to be called at a time, is called exactly then,
// and sees the same `now` as everybody who acts at that time. Events of one time happen in the
// order in which they were asked for, so a run is a function of its seed.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "base/time.hpp"

namespace harp::sim {

class Actor {
 public:
  Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  virtual ~Actor() = default;

  /// Called at the time that was asked for, with the token that was given then.
  virtual void act(Time now, std::uint64_t token) = 0;
};

class Simulator {
 public:
  Time now() const { return now_; }
  std::uint64_t event_count() const { return events_; }

  /// Calls actor.act(at, token) at `at`, or now where that has passed.
  void schedule(Time at, Actor& actor, std::uint64_t token);
  /// The next event. False where there is none left.
  bool step();
  /// Steps until `done()`, or until `deadline` or `max_events` is reached. Returns done().
  template <typename Done>
  bool run_until(const Done& done, Time deadline, std::uint64_t max_events) {
    while (!done()) {
      if (queue_.empty() || queue_.top().at > deadline || events_ >= max_events) {
        return false;
      }
      step();
    }
    return true;
  }

 private:
  struct Entry {
    Time at;
    std::uint64_t order = 0;
    Actor* actor = nullptr;
    std::uint64_t token = 0;
    bool operator<(const Entry& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  Time now_{};
  std::uint64_t order_ = 0;
  std::uint64_t events_ = 0;
  std::priority_queue<Entry> queue_;
};

}  // namespace harp::sim
