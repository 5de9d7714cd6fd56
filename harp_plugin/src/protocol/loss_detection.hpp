// Which packets are lost, and when to find out.
//
// Rule 1, order on a path. Networks keep the packets of one flow in order, nearly. A packet is lost
// when a later one of the *same path* arrived and the reorder tolerance has passed since:
// max(RTT/8, 20 us), doubled (up to a round trip) when the receiver reports retransmissions that it
// did not need. Packets of different paths overtake one another all the time; that never means
// anything.
//
// Rule 2, tail probe. Nothing came back for max(2 responses, 200 us): the newest packet is sent
// again on another path, to draw an acknowledgement. It counts as a loss only if rule 1 says so
// then. A response is a round trip and the peer's time to answer (rtt.hpp).
//
// Rule 3, timeout. A packet is unacknowledged for max(least, 2 responses + max(4 deviations,
// least / 2)), doubled with each timeout without progress. For paths that went dark, and for dark
// networks.
//
// Where it is wrong: a reordering network with delays beyond a round trip costs needless
// retransmissions (never wrong data).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/serial.hpp"
#include "base/time.hpp"
#include "protocol/path_set.hpp"
#include "protocol/sent_packets.hpp"
#include "protocol/types.hpp"

namespace harp {

class LossDetector {
 public:
  LossDetector(Duration min_rto, Duration max_rto) : min_rto_(min_rto), max_rto_(max_rto) {}

  /// Calls lost(psn) for each packet that rule 1 gives up.
  template <typename Lost>
  void find_overtaken(SentPackets& packets, PathSet& paths, Time now, const Lost& lost) {
    for (std::size_t index = 0; index < paths.count(); ++index) {
      Path& path = paths.at(static_cast<PathIndex>(index));
      while (path.first_mark.is_set() && overtaken_at(path, paths) <= now) {
        while (!packets.list_is_empty(index) &&
               !serial_less(path.first_mark.seq, packets.at(packets.front(index)).path_seq)) {
          lost(packets.front(index));
        }
        path.first_mark = path.latest_mark;
        path.latest_mark = {};
      }
    }
  }
  /// Calls lost(psn) for each packet that rule 3 gives up; afterwards on_timeout() is due.
  template <typename Lost>
  void find_timed_out(SentPackets& packets, const PathSet& paths, Time now, const Lost& lost) {
    for (std::size_t index = 0; index < paths.count(); ++index) {
      const Duration timeout = rto(paths, static_cast<PathIndex>(index));
      while (!packets.list_is_empty(index) &&
             packets.at(packets.front(index)).sent_at + timeout <= now) {
        lost(packets.front(index));
      }
    }
  }
  void on_timeout() { backoff_ = std::min(backoff_ + 1, 16); }
  void on_sent(Time now) { last_activity_ = now; }
  void on_progress(Time now) {
    backoff_ = 0;
    last_activity_ = now;
    tail_probed_ = false;
  }
  /// `total` retransmissions were not needed, says the receiver. Returns whether that is news.
  bool on_spurious_report(std::uint32_t total);
  /// A round trip has passed: old reordering is slowly forgotten.
  void on_round();

  Time next_overtaken(const SentPackets& packets, const PathSet& paths) const;
  Time next_timeout(const SentPackets& packets, const PathSet& paths) const;
  /// The timeout of packets on path `index`, with the backoff.
  Duration rto(const PathSet& paths, PathIndex index) const;
  /// When rule 2 sends the newest packet in flight again; kNever where it did since the last
  /// progress.
  Time tail_probe_at(const SentPackets& packets, const PathSet& paths) const;
  /// Whether that is due. It is done then.
  bool take_tail_probe(const SentPackets& packets, const PathSet& paths, Time now);

 private:
  Time overtaken_at(const Path& path, const PathSet& paths) const;

  Duration min_rto_;
  Duration max_rto_;
  int backoff_ = 0;
  int tolerance_eighths_ = 1;  ///< Eighths of a round trip.
  int calm_rounds_ = 0;
  Time last_activity_{};  ///< Data was sent, or acknowledged.
  bool tail_probed_ = false;
  std::uint32_t spurious_ = 0;
};

}  // namespace harp
