// The paths of a session: one UDP source port each, so that a network that hashes flows spreads
// them.
//
// A path is chosen for a burst of packets, the better of two drawn at random by smoothed RTT times
// packets in flight (Mitzenmacher's power of two choices): load spreads, and slow paths get less.
// A path whose packets time out three times, while others carry packets, is put in quarantine: it
// gets probes only, at growing intervals, and returns with the first sign of life. When every path
// is in quarantine, all are used: there is nothing better.
//
// A path's packets belong to one flow at a time. Where a NIC's hash sends a flow to the queue of an
// engine that is not the session's, the peer says so, and the path moves to a flow that was not
// tried yet; where there is none left, it stays, and the peer's engines go on handing packets over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "protocol/rtt.hpp"
#include "protocol/types.hpp"

namespace harp {

struct Path {
  /// "From `at` on, packets up to `seq` that are still missing were overtaken."
  struct Mark {
    PathSeq seq = 0;
    Time at = kNever;
    bool is_set() const { return at != kNever; }
  };

  FlowIndex flow = 0;
  PathSeq flow_begin = 1;  ///< The first path_seq on this flow.
  PathSeq next_seq = 1;
  PathSeq newest_acked = 0;
  RttEstimator rtt;
  Time newest_echo = Time::min();  ///< When the packet left that gave the newest sample.
  Mark first_mark;                 ///< Waits for its reorder tolerance to pass.
  Mark latest_mark;                ///< What came since; follows when the first has been acted upon.
  Time last_progress{};            ///< When newest_acked last grew.
  int timeouts = 0;                ///< Timeouts in a row without progress.
  bool in_quarantine = false;
  Time probe_at = kNever;
  Duration probe_interval{};
};

class PathSet {
 public:
  /// `flows`: that there are to choose from.
  PathSet(std::size_t count, std::size_t flows);

  /// Keeps the first `count` paths only; before the first packet.
  void limit(std::size_t count);

  std::size_t count() const { return paths_.size(); }
  Path& at(PathIndex path) { return paths_[path]; }
  const Path& at(PathIndex path) const { return paths_[path]; }
  std::size_t usable_count() const { return usable_.size(); }

  /// A path for the next burst, not `avoid` where there is another. `cost` gives the packets in
  /// flight on a path.
  template <typename InFlight>
  PathIndex choose(Rng& rng, PathIndex avoid, const InFlight& in_flight) const {
    const PathIndex first = draw(rng, avoid);
    const PathIndex second = draw(rng, avoid);
    return cost(second, in_flight(second)) < cost(first, in_flight(first)) ? second : first;
  }

  /// The peer saw `newest` on path `index`. Returns whether that is news.
  bool on_report(PathIndex index, PathSeq newest, Time now);
  /// The peer saw `newest` on path `index` come astray. Returns whether the path moves to another
  /// flow for that.
  bool on_astray(PathIndex index, PathSeq newest);
  /// The path carried something, probes included: ends its quarantine.
  void on_alive(PathIndex index, Time now);
  /// A packet that was sent on path `index` at `sent_at` timed out. Returns whether other paths
  /// have carried packets since, so that this one is to blame.
  bool on_timeout(PathIndex index, Time sent_at, Time now, Duration rto);

  Time next_probe_at() const { return next_probe_at_; }
  /// A path to probe now, kNoPath for none; the next probe of it is scheduled.
  PathIndex take_probe(Time now) { return now < next_probe_at_ ? kNoPath : take_due_probe(now); }

  /// Smoothed RTT of the best usable path, zero where there is none yet.
  Duration best_rtt() const;
  /// The same of responses.
  Duration best_response() const;
  Duration min_rtt() const;

 private:
  /// The least of `time_of(rtt)` of usable paths, zero where none has a sample.
  template <typename TimeOf>
  Duration best(const TimeOf& time_of) const;
  PathIndex take_due_probe(Time now);
  PathIndex draw(Rng& rng, PathIndex avoid) const;
  double cost(PathIndex path, std::uint32_t in_flight) const;
  /// After a path went into quarantine or left it, or was probed.
  void refresh();

  std::vector<Path> paths_;
  std::vector<PathIndex> usable_;
  std::size_t flows_;
  std::size_t next_flow_;        ///< Not tried yet.
  Time next_probe_at_ = kNever;  ///< Asked for with every packet.
};

}  // namespace harp
