// Signs of life, and of death, of the ranks of this host.
//
// Death: a process of this host is watched by pidfd and by its Unix socket, by its neighbours in
// the host's tree, and the leader by all; another host by its control connection. It is seen at
// once, whatever children the dead process left behind. Who sees it tells the leader, as any error.
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
  /// `tag_base`: process `index` of HostMembership::watched is watched under tag_base + index.
  static Result<Liveness> start(Membership& world, Waker& waker, std::uint64_t tag_base);

  /// Whether that process is gone.
  bool has_ended(std::size_t index) const;
  /// Whether nobody else says why it ended. Where its world was over, it has told the leader why,
  /// or heard it there. Neither is at the other end of a ring of this rank's.
  bool is_unexplained(std::size_t index) const;
  /// What to say of its end.
  Status death_of(std::size_t index) const;
  /// Stops watching that process.
  void unwatch(Waker& waker, std::size_t index) const;
  /// This rank's world is over: its own end is no news to others.
  void say_over();
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
};

}  // namespace lightcc
