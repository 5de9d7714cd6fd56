#include "protocol/competition.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/time.hpp"

namespace harp {
namespace {

constexpr int kStandingRounds = 5;  ///< In a row with a queue, after which a probe is due.
constexpr int kLossCuts = 3;        ///< The same of losses beside a queue.
constexpr int kQuietRounds = 256;   ///< Without queue and loss, after which all that is forgotten.
constexpr double kForeignShare = 0.5;  ///< Ours, below which a queue is others'.
constexpr double kOwnShare = 0.85;     ///< Ours, above which it is not.
constexpr int kProbesToRest = 2;
constexpr int kDipsToCompete = 4;
constexpr int kRisePercent = 10;      ///< A dip's round trip rises so when somebody starts.
constexpr double kDipFraction = 0.7;  ///< A dip leaves at most so much of the window.
constexpr double kForeignRest = 0.3;  ///< Only others leave so much of a queue.
/// Sessions that yield to delay have done so by then.
constexpr Duration kPatience = std::chrono::milliseconds(500);
constexpr int kIdleRounds = 32;  ///< Without a queue, after which nobody competes.

constexpr double kWantedShare = 0.64;
constexpr double kYieldShare = 0.45;  ///< Who has less yields less to loss.
constexpr double kDecreaseWithShare = 0.7;
constexpr double kDecreaseWithout = 0.85;
constexpr double kStubbornLoss = 0.4;  ///< Part of rounds with loss that no yielding explains.
constexpr double kMaxLoss = 0.25;      ///< Everybody yields where a round loses more.
constexpr double kMaxGrowth = 8;       ///< One probe raises a far goal at most so.
constexpr double kNearGrowth = 2;
constexpr int kLossMemory = 32;  ///< Rounds after a loss in which the goal grows slowly.

constexpr Duration kShortDelay = std::chrono::microseconds(2500);  ///< A rate is held below it,
constexpr Duration kLongDelay = std::chrono::milliseconds(4);      ///< and no longer above it.
constexpr double kOverflow = 0.1;   ///< Part of rounds with loss, where others overflow the queue.
constexpr double kFewPackets = 48;  ///< In flight: it is not this end that overflows it.
constexpr int kLongerRounds = 3;
constexpr double kOwnMeanShare = 0.8;
/// Without loss while a rate is held: TCP would have made the queue overflow.
constexpr Duration kPeace = std::chrono::milliseconds(400);

constexpr int kProbeRounds = 64;  ///< Between two probes while competing.
constexpr Duration kProbeInterval = std::chrono::milliseconds(200);
constexpr int kRoundsAfterLoss = 3;  ///< Until a probe: sessions lose together, so they probe so.
constexpr int kMinProbeRounds = 8;
constexpr int kRoundsBetween = 4;  ///< Probes, where the goal was far.
constexpr int kMinJoinRounds = 48;
constexpr int kRefreshRounds = 128;
constexpr Duration kRefreshInterval = std::chrono::milliseconds(50);

}  // namespace

std::optional<double> Competition::on_round(const CompetitionRound& round) {
  const Duration rtt = round.min_rtt + round.delay;
  const Duration known_min_rtt = std::exchange(known_min_rtt_, round.min_rtt);
  const Duration highest = std::max(rtts_[0], rtts_[1]);
  rtts_ = {rtts_[1], rtt};
  ++rounds_since_probe_;
  since_probe_ += round.elapsed;
  lossless_time_ = round.lost > 0 ? Duration{} : lossless_time_ + round.elapsed;
  standing_time_ += round.elapsed;
  if (round.has_delay) {
    mean_delay_ += (round.delay - mean_delay_) / 16;
  }
  if (is_holding_ && has_outgrown_hold(round)) {
    return stop_holding(round);
  }
  if (round.has_delay && probe_.is_on()) {
    const double used_window = std::max(round.window * window_part(), kMinWindow);
    const std::optional<double> share = probe_.on_round(rtt, round.min_rtt);
    return share ? end_probe(round, used_window, *share) : round.window;
  }
  count_queue(round);
  if (is_competing_ && (is_holding_ ? lossless_time_ >= kPeace : idle_rounds_ >= kIdleRounds)) {
    stop_competing();
  }
  if (is_competing_) {
    const int join_rounds = is_holding_ ? kMinJoinRounds : kMinProbeRounds;
    if (rtt < highest - highest / 12 && rounds_since_probe_ >= join_rounds) {
      probe_.join(rtt, round.min_rtt, false);
      return round.window;
    }
    return compete(round);
  }
  if (starts_dip(round, known_min_rtt, highest)) {
    return round.window;
  }
  return std::nullopt;
}

Duration Competition::standing_queue(const CompetitionRound& round) const {
  return std::max(min_allowance_ * 7 / 4, round.allowed * 5 / 4);
}

void Competition::count_queue(const CompetitionRound& round) {
  if (round.has_delay && round.delay > standing_queue(round) && round.window_was_used) {
    ++standing_rounds_;
    calm_rounds_ = 0;
  } else {
    standing_rounds_ = 0;
    calm_rounds_ += round.lost == 0 ? 1 : 0;
    if (round.lost == 0 && calm_rounds_ >= kQuietRounds && foreign_dips_ == 0) {
      standing_time_ = {};
      loss_cuts_ = 0;
    }
  }
  idle_rounds_ = round.delay > round.allowed ? 0 : idle_rounds_ + 1;
}

double Competition::end_probe(const CompetitionRound& round, double used_window, double share) {
  rounds_since_probe_ = 0;
  since_probe_ = {};
  if (!is_competing_) {
    return judge_dip(round, used_window, share);
  }
  share_ = share;
  if (is_holding_) {
    mean_share_ += (share - mean_share_) / 4;
    if (mean_share_ > kOwnMeanShare) {
      stop_competing();
    }
    return round.window;
  }
  own_probes_ = share > kOwnShare ? own_probes_ + 1 : 0;
  if (own_probes_ >= kProbesToRest) {
    stop_competing();
    return round.window;
  }
  probe_in_ = own_probes_ > 0 ? kMinProbeRounds : 0;
  set_goal(round.window);
  return round.window;
}

// A window of a quarter leaves nothing of a queue that is this end's. Where it leaves the path as
// it is known, that may have been seen with others' queue alone: then an upward probe decides.
double Competition::judge_dip(const CompetitionRound& round, double used_window, double share) {
  const Duration queue = probe_.before() - round.min_rtt;
  const Duration rest = probe_.after() - round.min_rtt;
  standing_rounds_ = 0;
  if (probe_.is_deep() && probe_.after() > probe_.before() * (100 + kRisePercent) / 100) {
    return round.window;  // Somebody is starting.
  }
  const bool may_be_foreign = queue > round.allowed / 2 && share < kForeignShare;
  const bool is_rest = seconds(rest) > kForeignRest * seconds(queue);
  wants_upward_ = probe_.is_deep() && may_be_foreign && !is_rest;
  if (wants_upward_) {
    return round.window;
  }
  if (probe_.is_deep() && used_window > kDipFraction * round.window && !may_be_foreign) {
    // So few packets cannot become fewer, and make no queue that stands. What goes with others'
    // queue, which swings, is no answer.
    if (std::min(queue, rest) > round.allowed) {
      count_foreign_dip(round, 0);
    }
    return round.window;
  }
  if (!may_be_foreign) {
    foreign_dips_ = 0;
    // A long queue has gone with the packets, so the window stays smaller.
    return queue > standing_queue(round) ? std::min(used_window, round.window) : round.window;
  }
  count_foreign_dip(round, share);
  return round.window;
}

void Competition::count_foreign_dip(const CompetitionRound& round, double share) {
  ++foreign_dips_;
  if (competes_ && foreign_dips_ >= kDipsToCompete && standing_time_ >= kPatience) {
    start_competing();
    share_ = share;
    set_goal(round.window);
  }
}

void Competition::set_goal(double window) {
  constexpr double kWantedOdds = kWantedShare / (1 - kWantedShare);
  const double odds = std::max(share_, 0.05) / std::max(1 - share_, 0.05);
  const bool has_hardly_anything = share_ < 0.1 && rounds_since_loss_ > kLossMemory;
  const double change =
      std::clamp(kWantedOdds / odds, 0.5, has_hardly_anything ? kMaxGrowth : kNearGrowth);
  goal_window_ = std::min(window * change, max_window_);
  goal_was_far_ = change > 1.5 || change < 0.67;
}

bool Competition::starts_dip(const CompetitionRound& round,
                             Duration known_min_rtt,
                             Duration highest) {
  const bool has_just_started = was_starting_ && !round.is_starting;
  was_starting_ = round.is_starting;
  // A queue that is short beside the path tells nothing: it is gone with the first packets less.
  queue_tells_ = round.delay > round.min_rtt / 5;
  if (round.is_starting || !round.window_was_used) {
    return false;
  }
  const Duration rtt = round.min_rtt + round.delay;
  const bool path_is_shorter =
      known_min_rtt != Duration::max() && round.min_rtt + min_allowance_ / 4 < known_min_rtt;
  if (path_is_shorter || (rounds_since_probe_ >= kMinJoinRounds && rtt < highest - highest / 12)) {
    probe_.join(rtt, round.min_rtt, true);
    return true;
  }
  const bool is_due = rounds_since_probe_ >= kRefreshRounds && since_probe_ >= kRefreshInterval;
  const bool stands = competes_ && standing_rounds_ >= kStandingRounds;
  const bool asks = competes_ && queue_tells_ && (has_just_started || loss_cuts_ >= kLossCuts);
  const bool asks_again = competes_ && queue_tells_ && (foreign_dips_ > 0 || wants_upward_) &&
                          rounds_since_probe_ >= kRoundsBetween;
  wants_upward_ = wants_upward_ && competes_;
  if (!is_due && !stands && !asks && !asks_again) {
    return false;
  }
  standing_rounds_ = 0;
  loss_cuts_ = 0;
  if (std::exchange(wants_upward_, false)) {
    probe_.start_upward();
  } else {
    probe_.start_deep();
  }
  return true;
}

void Competition::on_loss_beside_queue() {
  loss_cuts_ += queue_tells_ ? 1 : 0;
  calm_rounds_ = 0;
}

void Competition::start_competing() {
  is_competing_ = true;
  foreign_dips_ = 0;
  own_probes_ = 0;
  idle_rounds_ = 0;
  lossy_rounds_ = 0;
  rounds_since_loss_ = kLossMemory + 1;
  probe_in_ = 0;
}

void Competition::stop_competing() {
  is_competing_ = false;
  is_holding_ = false;
  own_probes_ = 0;
}

// A queue that is full is short, where it overflows at so little delay.
bool Competition::wants_hold(const CompetitionRound& round) const {
  return round.lost > 0 && lossy_rounds_ > kOverflow && round.window <= kFewPackets &&
         mean_delay_ < kShortDelay;
}

void Competition::start_holding(const CompetitionRound& round) {
  is_holding_ = true;
  hold_ = RateHold(max_window_);
  mean_share_ = 0;
  window_before_hold_ = round.window;
  delay_before_hold_ = mean_delay_;
  longer_rounds_ = 0;
}

// Exploring fills whatever queue there is. One that it makes longer was not full, and may be this
// end's.
bool Competition::has_outgrown_hold(const CompetitionRound& round) {
  const bool is_longer = round.delay > 2 * delay_before_hold_ + std::chrono::microseconds(500);
  longer_rounds_ = is_longer ? longer_rounds_ + 1 : 0;
  return mean_delay_ > kLongDelay || (hold_.is_exploring() && longer_rounds_ >= kLongerRounds);
}

double Competition::stop_holding(const CompetitionRound& round) {
  is_holding_ = false;
  share_ = 1;
  own_probes_ = 0;
  goal_window_ = hold_.is_exploring() ? window_before_hold_ : round.window;
  return goal_window_;
}

double Competition::hold_rate(const CompetitionRound& round) {
  if (!round.window_was_used) {
    return round.window;
  }
  const double window = hold_.on_round({.elapsed = round.elapsed,
                                        .rtt = round.min_rtt + round.delay,
                                        .delivered = round.delivered_packets,
                                        .lost = round.lost_packets,
                                        .has_queue = round.delay > round.allowed},
                                       round.window);
  const bool is_due = rounds_since_probe_ >= kProbeRounds && since_probe_ >= kProbeInterval;
  if (is_due && !hold_.is_exploring()) {
    probe_.start();
  }
  return std::max(window, kMinWindow);
}

double Competition::compete(const CompetitionRound& round) {
  if (is_holding_) {
    return hold_rate(round);
  }
  const bool has_lost = round.lost > 0;
  rounds_since_loss_ = has_lost ? 0 : rounds_since_loss_ + 1;
  lossy_rounds_ += ((has_lost ? 1 : 0) - lossy_rounds_) / 16;
  if (wants_hold(round)) {
    start_holding(round);
    return round.window;
  }
  const bool is_stubborn = lossy_rounds_ > kStubbornLoss && share_ < kWantedShare;
  double window = round.window;
  if (round.lost > kMaxLoss || (has_lost && !is_stubborn)) {
    window *= share_ >= kYieldShare ? kDecreaseWithShare : kDecreaseWithout;
    window = std::max(window, kMinWindow);
    goal_window_ = window;
    probe_in_ = kRoundsAfterLoss;
    goal_was_far_ = false;
  } else if (round.window_was_used) {
    window = window < goal_window_ ? std::min(1.5 * window + 1, goal_window_)
                                   : std::max(0.9 * window, goal_window_);
  }
  const bool wants_probe = probe_in_ == 1;
  probe_in_ = std::max(probe_in_ - 1, 0);
  const bool is_there = window >= 0.95 * goal_window_;
  const bool is_due = (rounds_since_probe_ >= kProbeRounds && since_probe_ >= kProbeInterval) ||
                      (goal_was_far_ && is_there && rounds_since_probe_ >= kRoundsBetween) ||
                      (wants_probe && rounds_since_probe_ >= kMinProbeRounds);
  if (is_due && round.window_was_used) {
    probe_.start();
  }
  return window;
}

}  // namespace harp
