// A world of control planes in virtual time: hosts, links with delays, an executor that only
// counts, and what may happen to ranks. What ranks ask for, and what must hold, is the story's
// business.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "lightcc/base/rng.hpp"
#include "lightcc/control/control_plane.hpp"

namespace lightcc::sim {

struct WorldPlan {
  std::vector<std::vector<int>> hosts;  ///< Ranks by host, ascending; hosts by their lowest rank.
  Duration peer_timeout = std::chrono::seconds(2);
  Duration local_delay = std::chrono::microseconds(1);
  Duration network_delay = std::chrono::microseconds(20);
  Duration shortest_bucket = Duration::zero();
  Duration slowest_control = Duration::zero();  ///< Extra delay of some control links, at most.
  SequencerOptions sequencer;
  std::size_t max_inline_bytes = 0;
  bool counts_bytes = false;
  /// Loses the frame with this number, in silence: a fault of the simulator itself, which it must
  /// find. Negative: none.
  std::int64_t lost_frame = -1;
  /// Hands the frames of one link over in the wrong order.
  bool swaps_frames = false;
  /// Heartbeats never say that somebody waits.
  bool hides_waiting = false;
  /// One byte of an input of an inline all-reduce is another one when it arrives.
  bool spoils_inputs = false;
  /// Deaths name another rank than the one that died.
  bool blames_wrongly = false;
};

/// What one rank sent and received.
struct Traffic {
  std::uint64_t frames_in = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t frames_out = 0;
  std::uint64_t bytes_out = 0;
};

class ControlWorld {
 public:
  ControlWorld(WorldPlan plan, std::uint64_t seed);

  /// An operation of `rank` ended; `value` as in CompleteOperation.
  std::function<void(int rank, OperationToken, const Status&, std::int32_t value)> on_complete;

  /// A rank's world ended. May be empty.
  std::function<void(const EndWorld&)> on_end;

  int size() const { return static_cast<int>(ranks_.size()); }
  TimePoint now() const { return now_; }
  Rng& rng() { return rng_; }
  void at(TimePoint when, std::function<void()> what);
  /// `is_alone`: its input may go with the report.
  void submit(int rank, const Request& request, OperationToken operation, bool is_alone = false);
  void leave(int rank);

  // Faults.
  void kill(int rank);
  /// The process is stopped; it goes on at `until`.
  void stop(int rank, TimePoint until);
  /// Nothing passes between two neighbours of the tree any more, and nobody is told.
  void cut(int rank);
  /// A whole host vanishes without a word; what is sent to it later is refused.
  void restart_host(std::size_t host);

  /// Plays until nothing is left to do but heartbeats, or until `deadline`.
  void run(TimePoint deadline);

  bool is_alive(int rank) const { return ranks_[index(rank)].alive; }
  bool is_stopped(int rank) const { return ranks_[index(rank)].stopped_until > now_; }
  /// Null while the rank's world goes on.
  const EndWorld* end_of(int rank) const { return ranks_[index(rank)].end.get(); }
  std::size_t outstanding(int rank) const { return ranks_[index(rank)].outstanding; }
  const ControlPlane& control(int rank) const { return *ranks_[index(rank)].control; }
  int parent_of(int rank) const { return ranks_[index(rank)].parent; }
  int host_of(int rank) const { return ranks_[index(rank)].host; }
  bool is_leader(int rank) const;
  const Traffic& traffic(int rank) const { return ranks_[index(rank)].traffic; }
  void reset_traffic();
  std::uint64_t events() const { return events_; }
  /// All-reduces that ranks got as results.
  std::uint64_t inline_results() const { return inline_results_; }
  /// The first thing that went against an invariant of execution, or empty.
  const std::string& violation() const { return violation_; }

 private:
  struct Link {
    int rank = -1;
    LinkIndex back = kNoLink;  // The number of this link at the other end.
    bool is_remote = false;
    bool is_cut = false;
    Duration extra{};
    TimePoint last_arrival;
  };
  struct Bucket {
    std::uint64_t content = 0;  // Hash of names, in order.
    std::size_t arrived = 0;
    std::vector<std::pair<int, std::vector<OperationToken>>> operations;
  };
  /// Process set and lane, and the number there.
  using BucketKey = std::pair<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t>;
  struct Rank {
    std::unique_ptr<ControlPlane> control;
    int host = 0;
    int parent = -1;
    Link to_parent;
    std::vector<Link> children;
    bool alive = true;
    TimePoint stopped_until{};
    bool is_awake = false;  // A wake event is under way.
    std::uint32_t beats = 0;
    bool beat_busy = false;
    std::vector<std::uint32_t> seen_beats;  // By place in watched.
    std::vector<int> watched;
    std::size_t outstanding = 0;
    std::deque<BucketKey> running;  // In their order; the first one runs.
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> bucket_count;
    std::map<std::string, std::uint64_t> asked;  // How often, by operation.
    std::unique_ptr<EndWorld> end;
    TimePoint next_tick_event{};
    Traffic traffic;
  };
  struct Event {
    TimePoint when;
    std::uint64_t number;
    std::function<void()> what;
    bool is_heartbeat = false;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.when != b.when ? a.when > b.when : a.number > b.number;
    }
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void schedule(TimePoint when, std::function<void()> what, bool is_heartbeat = false);
  bool can_act(int rank, const std::function<void()>& otherwise);
  void act_at(TimePoint when, int rank, std::function<void()> what);
  void wake(int rank);
  void pump(int rank);
  void drain(int rank);
  void send(int rank, const OutgoingFrame& frame);
  void transmit(int from, Link& link, const std::shared_ptr<const Frame>& frame, std::size_t bytes);
  void deliver(int to, LinkIndex link, std::shared_ptr<const Frame> frame, std::size_t bytes);
  void close_link(int from, Link& link, Duration after);
  void close_data(int rank);
  void schedule_tick(int rank);
  void tick(int rank);
  void tick_if_due(int rank);
  void run_bucket(int rank, RunBucket& bucket);
  void arrive(int rank);
  void take_result(int rank, const TakeResult& taken);
  void complete(int rank, OperationToken operation, const Status& status, std::int32_t value);
  void vanish(int rank);
  Duration jitter(Duration maximum) {
    return Duration(
        static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(maximum.count()) + 1)));
  }
  void violate(const std::string& what);

  WorldPlan plan_;
  Rng rng_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  std::size_t work_events_ = 0;  // Those that are no heartbeats.
  TimePoint now_{};
  std::uint64_t next_number_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t inline_results_ = 0;
  std::int64_t frames_ = 0;
  std::map<BucketKey, Bucket> buckets_;
  std::string violation_;
};

}  // namespace lightcc::sim
