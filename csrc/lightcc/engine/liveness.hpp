// Signs of life, and of death, of the ranks of this host.
//
// Death: a process of this host is watched by pidfd and by its Unix socket (leader: every member;
// member: the leader), another host by its control connection. Seen at once, whatever children the
// dead process left behind.
// Life: every progress loop raises a counter in shared memory about once a second, and sends a
// heartbeat frame along the tree. What follows from silence is control/silence's business.
#pragma once

#include <cstdint>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/control_plane.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/waker.hpp"

namespace lightcc {

/// Thread: the one that drives the progress loop.
class Liveness {
 public:
  /// `tag_base`: pidfds are watched under tag_base + place.
  static Result<Liveness> start(Membership& world, Waker& waker, std::uint64_t tag_base);

  /// The world rank behind place `place` of the watched processes, and what to say of its end.
  Status death_of(std::size_t position) const;
  /// Stops watching that process.
  void unwatch(Waker& waker, std::size_t position) { waker.unwatch(pidfds_[position].get()); }
  /// The ranks of this host whose counters this rank looks at.
  std::vector<int> watched_ranks() const;
  /// Raises the own counter.
  void beat(bool is_busy);
  /// Tells `control` whose counters have moved since the last call.
  void tell(ControlPlane& control, TimePoint now);
  /// A rank of this host says that it has work outstanding.
  bool host_is_busy() const;

 private:
  struct Neighbour {
    int rank = -1;
    const SleepWord* word = nullptr;
    std::uint32_t last_count = 0;
  };

  explicit Liveness(Membership& world) : world_(&world) {}

  Membership* world_;
  std::uint32_t beats_ = 0;
  std::vector<Neighbour> neighbours_;
  std::vector<UniqueFd> pidfds_;  // By place in HostMembership::pids.
};

}  // namespace lightcc
