// Which neighbours have been silent for too long while somebody waits.
//
// Every progress loop gives a sign of life about once a second. A neighbour that gave none for the
// peer timeout, while somebody waits, is an error. An application that computes for minutes is
// healthy: its progress loop goes on.
//
// Who waits may be far away. Heartbeats say whether somebody does: the sender, or a rank beyond it.
// What a neighbour said is never told back to it, nor held against it. So the word goes away when
// the wait is over, and a process that was stopped while it waited harms nobody.
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
  void watch(int rank, TimePoint now) { neighbours_.push_back({rank, now, false}); }
  /// A sign of life of `rank`. Ranks that are not watched are ignored.
  void heard_from(int rank, TimePoint now);
  /// `rank` says whether it, or somebody beyond it, waits for others.
  void note_waiting(int rank, bool waits);
  /// Whether anyone else waits, as far as the neighbours have said.
  bool waits_beside(int rank) const;
  /// Ok, or kTimeout naming the silent rank. `is_host_busy`: somebody of this host waits for
  /// others.
  Status tick(TimePoint now, bool is_host_busy);
  /// Ok, or kTimeout naming a rank that gave no sign of life since `since`.
  Status check_since(TimePoint since, TimePoint now) const;
  /// How often signs of life are given, and how often tick() wants to be called.
  Duration interval() const { return interval_; }

 private:
  struct Neighbour {
    int rank = -1;
    TimePoint last_heard;
    bool waits = false;
  };

  Duration timeout_;
  Duration interval_;
  TimePoint last_tick_;
  std::vector<Neighbour> neighbours_;
};

}  // namespace lightcc
