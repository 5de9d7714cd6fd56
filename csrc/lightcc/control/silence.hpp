// Which neighbours have been silent for too long while somebody waits.
//
// Every progress loop gives a sign of life about once a second. A neighbour that gave none for the
// peer timeout, while this host has work outstanding, is an error. An application that computes for
// minutes is healthy: its progress loop goes on. Silence between hosts is not seen on behalf of
// ranks that are all idle themselves.
#pragma once

#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

/// Thread: one at a time.
class Silence {
 public:
  Silence(Duration timeout, TimePoint now);

  /// Expects signs of life of this world rank from now on.
  void watch(int rank, TimePoint now) { neighbours_.push_back({rank, now}); }
  /// A sign of life of `rank`. Ranks that are not watched are ignored.
  void heard_from(int rank, TimePoint now);
  /// Ok, or kTimeout naming the silent rank. `anyone_busy`: somebody of this host waits for others.
  Status tick(TimePoint now, bool anyone_busy);
  /// Ok, or kTimeout naming a rank that gave no sign of life since `since`.
  Status check_since(TimePoint since, TimePoint now) const;
  /// How often signs of life are given, and how often tick() wants to be called.
  Duration interval() const { return interval_; }

 private:
  struct Neighbour {
    int rank = -1;
    TimePoint last_heard;
  };

  Duration timeout_;
  Duration interval_;
  TimePoint last_tick_;
  std::vector<Neighbour> neighbours_;
};

}  // namespace lightcc
