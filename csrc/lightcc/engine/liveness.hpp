// Who is still there.
//
// Death: a process of this host is watched by pidfd and by its Unix socket (leader: every member;
// member: the leader), another host by its control connection. Seen at once, whatever children the
// dead process left behind.
// Silence: every progress loop raises a counter about once a second (in shared memory for its host,
// as a heartbeat frame along the tree). A neighbour that has not been heard of for the peer timeout
// while this host has work outstanding is an error. An application that computes for minutes is
// healthy: its progress loop goes on.
// Not seen: silence between hosts on behalf of ranks that are all idle themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/waker.hpp"

namespace lightcc {

/// Thread: the one that drives the progress loop.
class Liveness {
 public:
  /// `tag_base`: pidfds are watched under tag_base + place.
  static Result<Liveness> start(Membership& world,
                                Waker& waker,
                                std::uint64_t tag_base,
                                Duration peer_timeout,
                                TimePoint now);

  /// The world rank behind place `place` of the watched processes, and what to say of its end.
  Status death_of(std::size_t place) const;
  /// Stops watching that process.
  void unwatch(Waker& waker, std::size_t place) { waker.unwatch(pidfds_[place].get()); }
  /// Something arrived from the neighbour with this world rank (a TCP control link).
  void heard_from(int rank, TimePoint now);
  /// Raises the own counter and looks at the others'. Ok, or kTimeout naming the silent rank.
  Status tick(TimePoint now, bool busy);
  /// How often tick() wants to be called.
  Duration interval() const { return interval_; }

 private:
  struct Neighbour {
    int rank = -1;
    const SleepWord* word = nullptr;  // Null: beyond this host.
    std::uint32_t last_count = 0;
    TimePoint last_heard;
  };

  Liveness(Membership& world, Duration peer_timeout) : world_(&world), timeout_(peer_timeout) {}
  bool host_is_busy() const;

  Membership* world_;
  Duration timeout_;
  Duration interval_{};
  TimePoint last_tick_;
  std::uint32_t beats_ = 0;
  std::vector<Neighbour> neighbours_;
  std::vector<UniqueFd> pidfds_;  // By place in HostMembership::pids.
};

}  // namespace lightcc
