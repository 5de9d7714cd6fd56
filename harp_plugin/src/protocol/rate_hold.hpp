// Holds a rate on a link whose queue is short and full, where a share probe tells nothing.
//
// A queue of a millisecond swings between nothing and all of itself with each burst of the others,
// and round trips swing with it. Packets that arrive are a better measure: a full queue gives each
// sender a part of the link in proportion to what he sends. Who keeps his rate keeps his share,
// and BBR and CUBIC find what is left. Loss does not lower the rate, as beside BBR it comes
// whatever one does.
//
// The rate of the link is the most that has ever arrived in kInterval. It is *explored*, as in the
// startup of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016): the
// window doubles until kStalls intervals in a row have brought no tenth more. Then the pacer holds
// kWanted of the rate, whatever the round trip is. It is explored again after 0.6 s, and ever more
// rarely where nothing is found.
//
// An interval without queue and loss has room to spare, and is filled up. Where much is lost for
// long, several sessions hold rates on one link: each wants half of what it wanted, and a twentieth
// of the link more after each second without.
//
// Known weakness: the most that arrived in an interval may be a tenth above the link, or a third
// below it where others give no way.
#pragma once

#include "base/time.hpp"

namespace harp {

class RateHold {
 public:
  struct Round {
    Duration elapsed{};
    Duration rtt{};
    double delivered = 0;  ///< Packets.
    double lost = 0;       ///< Packets.
    bool has_queue = false;
  };

  /// `max_window`: packets in flight, at most.
  explicit RateHold(double max_window) : max_window_(max_window) {}

  /// Takes what a round in which the window was used has shown. Returns the window of the next.
  double on_round(const Round& round, double window);

  bool is_exploring() const { return is_exploring_; }
  /// Packets per second at which to send; 0 while exploring: no limit.
  double rate() const { return is_exploring_ ? 0 : rate_; }
  /// Packets per second that the link carries, as far as it is known.
  double link_rate() const { return link_rate_; }

 private:
  static constexpr double kWanted = 0.6;

  bool explore(double arrived, double loss);
  void hold(double arrived, double loss, bool has_queue);

  double max_window_;
  double link_rate_ = 0;
  double goal_ = kWanted;  ///< Part of the link; less in a crowd.
  double rate_ = 0;
  double mean_loss_ = 0;
  bool has_spare_ = false;
  Duration longest_rtt_{};  ///< Forgotten slowly.

  // The interval so far:
  Round sum_;
  int rounds_ = 0;

  bool is_exploring_ = true;
  double best_ = 0;   ///< That arrived, since exploring began.
  int stalls_ = 0;    ///< Intervals in a row that brought hardly more.
  Duration since_{};  ///< The end of exploring.
  Duration explore_after_{};
};

}  // namespace harp
