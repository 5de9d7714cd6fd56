// Keeps apart whose queue it is that a session waits in, and, where it is asked to, takes a share
// of a link whose queue others keep full: kernel TCP, which does not yield to delay.
//
// Congestion asks once a round whether competition decides about the window, and decides by delay
// where it does not.
//
// The path's round trip must be known well for delay to be fair. The window therefore *dips*: it
// shrinks to a quarter for five rounds every 128, so that this end sees the path without its own
// queue. Who sees a round trip shrink dips as well, so that sessions on one link look together.
//
// A queue that a dip leaves behind is others'. A session that is asked to compete dips sooner where
// a queue stands. Where a dip has emptied the queue, but the path may have been seen with others'
// queue alone, it grows for five rounds instead (share_probe.hpp). Who has found a foreign queue
// often enough *competes*: it measures its share every now and then, and moves its window towards
// kWantedShare of the link. It yields to loss as TCP does. It does not yield to loss that comes
// whatever it does, as beside BBR in a short queue. Where a probe finds the queue to be its own,
// twice, delay decides again.
//
// A window of two packets cannot shrink. There the answer is whether a queue stands, not whether it
// falls: a fall is not this end's doing.
//
// A queue that overflows though it is short says little about shares. There a competing session
// holds a rate instead (rate_hold.hpp), until the queue turns out to be longer, or has gone.
//
// Known weakness: where a link carries no more packets than there are sessions, the window cannot
// dip, and sessions may take one another for TCP.
#pragma once

#include <array>
#include <optional>

#include "base/time.hpp"
#include "protocol/rate_hold.hpp"
#include "protocol/share_probe.hpp"

namespace harp {

inline constexpr double kMinWindow = 2;  ///< Packets.

/// What a round has shown, and what the window was in it.
struct CompetitionRound {
  Duration elapsed{};
  bool has_delay = false;  ///< Else nothing was measured, and `delay` is 0.
  Duration delay{};        ///< The least queueing delay.
  Duration allowed{};      ///< So much delay is no congestion.
  Duration min_rtt{};      ///< The path's least round trip.
  double delivered_packets = 0;
  double lost_packets = 0;
  double lost = 0;  ///< Part of the packets.
  bool window_was_used = false;
  bool is_starting = false;  ///< Slow start is not over.
  double window = 0;         ///< Without what a probe takes away.
};

class Competition {
 public:
  /// `competes`: else it only looks at the path now and then, and delay decides.
  Competition(bool competes, Duration min_allowance, double max_packets)
      : competes_(competes),
        min_allowance_(min_allowance),
        max_window_(kPartOfMaxWindow * max_packets),
        hold_(max_window_) {}

  /// The window for the next round; nothing where delay and loss shall decide, as without others.
  std::optional<double> on_round(const CompetitionRound& round);
  /// Delay and loss have decided, and loss beside a queue has shrunk the window.
  void on_loss_beside_queue();
  void on_timeout() { probe_.cancel(); }

  /// Part of the window that may be used: less than 1 while a probe makes it smaller.
  double window_part() const { return probe_.factor(); }
  bool is_competing() const { return is_competing_; }
  /// A rate, instead of a window that follows a measured share.
  bool is_holding() const { return is_holding_; }
  /// Packets per second to send at, where a rate is held; 0: no limit.
  double held_rate() const { return is_holding_ ? hold_.rate() : 0; }
  bool is_probing() const { return probe_.is_on(); }
  /// The share of the link that the last probe has found.
  double share() const { return share_; }

 private:
  static constexpr double kPartOfMaxWindow = 0.75;  ///< That a competing session may use.

  void count_queue(const CompetitionRound& round);
  double end_probe(const CompetitionRound& round, double used_window, double share);
  double judge_dip(const CompetitionRound& round, double used_window, double share);
  void count_foreign_dip(const CompetitionRound& round, double share);
  void set_goal(double window);
  Duration standing_queue(const CompetitionRound& round) const;
  bool starts_dip(const CompetitionRound& round, Duration known_min_rtt, Duration highest);
  void start_competing();
  void stop_competing();
  double compete(const CompetitionRound& round);
  bool wants_hold(const CompetitionRound& round) const;
  void start_holding(const CompetitionRound& round);
  bool has_outgrown_hold(const CompetitionRound& round);
  double stop_holding(const CompetitionRound& round);
  double hold_rate(const CompetitionRound& round);

  bool competes_;
  Duration min_allowance_;
  double max_window_;
  ShareProbe probe_;
  int rounds_since_probe_ = 0;
  Duration since_probe_{};
  double share_ = 1;

  // What the path and its queue look like.
  std::array<Duration, 2> rtts_{};  ///< The least of each of the last two rounds.
  Duration mean_delay_{};           ///< Over 16 rounds.
  Duration known_min_rtt_ = Duration::max();
  int standing_rounds_ = 0;   ///< Rounds in a row with a queue that stood.
  Duration standing_time_{};  ///< Since the last calm.
  int calm_rounds_ = 0;       ///< Without queue and loss, since the last queue that stood.
  int loss_cuts_ = 0;
  bool queue_tells_ = false;  ///< It is long enough for a probe to learn something from it.
  bool was_starting_ = true;
  bool wants_upward_ = false;  ///< The last dip has left the question open.
  int foreign_dips_ = 0;       ///< Probes that found others' queue, since the last that did not.

  // While competing.
  bool is_competing_ = false;
  bool is_holding_ = false;    ///< It holds a rate; then what is below counts, too.
  bool goal_was_far_ = false;  ///< It was far from the window when it was set.
  int probe_in_ = 0;           ///< Rounds until a probe that a loss has asked for; 0: none.
  double goal_window_ = 0;
  int own_probes_ = 0;       ///< Probes in a row that found this end's queue.
  int idle_rounds_ = 0;      ///< Rounds in a row without a queue.
  double lossy_rounds_ = 0;  ///< Part of the rounds that had loss, smoothed.
  int rounds_since_loss_ = 0;

  // While a rate is held.
  int longer_rounds_ = 0;  ///< In a row, with a longer queue than exploring can make of a full one.
  RateHold hold_;
  double mean_share_ = 0;  ///< Over four probes.
  double window_before_hold_ = 0;
  Duration delay_before_hold_{};
  Duration lossless_time_{};
};

}  // namespace harp
