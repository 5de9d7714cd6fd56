#include "protocol/rate_hold.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/time.hpp"

namespace harp {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(12);
constexpr int kMinRounds = 3;  ///< An interval has so many at least.

constexpr int kStalls = 6;
constexpr double kGrowth = 1.1;        ///< More must arrive by this factor.
constexpr double kHopelessLoss = 0.5;  ///< Exploring ends where an interval loses more.
constexpr double kForget = 0.9;        ///< The link's rate falls so when exploring finds less.
constexpr double kFirstWindow = 64;    ///< Packets that exploring may always have in flight.
constexpr double kExploreRoom = 6;     ///< The same, in round trips of what arrives.
constexpr Duration kExploreSoon = std::chrono::milliseconds(625);
constexpr Duration kExploreRarely = std::chrono::seconds(5);

constexpr double kHeadroom = 1.05;   ///< It is sent above the rate, as packets are lost.
constexpr double kMaxChange = 1.25;  ///< An interval changes the rate by no more.
constexpr double kMinRate = 0.3;     ///< The rate is at least so much of the goal.
constexpr double kMaxRate = 1.7;
constexpr double kSpare = 0.95;  ///< So much of the link is used where others leave it.
constexpr double kRoom = 2.5;    ///< The window, in round trips of the rate.
constexpr double kMinHeldWindow = 8;

constexpr double kCrowdLoss = 0.15;  ///< On average: several hold rates here.
constexpr double kLossAfter = 0.06;  ///< What the average begins with anew.
constexpr double kMinGoal = 0.1;
constexpr double kGoalGain = 0.0006;  ///< An interval moves the goal by so much.

}  // namespace

double RateHold::on_round(const Round& round, double window) {
  longest_rtt_ = std::max(round.rtt, longest_rtt_ - longest_rtt_ / 64);
  sum_.elapsed += round.elapsed;
  sum_.delivered += round.delivered;
  sum_.lost += round.lost;
  sum_.has_queue = sum_.has_queue || round.has_queue || round.lost > 0;
  if (++rounds_ < kMinRounds || sum_.elapsed < kInterval) {
    return window;
  }
  const Round interval = std::exchange(sum_, Round{});
  rounds_ = 0;
  const double arrived = interval.delivered / seconds(interval.elapsed);
  const double loss = interval.lost / std::max(interval.delivered + interval.lost, 1.0);
  since_ += interval.elapsed;
  if (is_exploring_) {
    if (explore(arrived, loss)) {
      const double room = std::max(kFirstWindow, kExploreRoom * best_ * seconds(longest_rtt_));
      return std::min({2 * window, room, max_window_});
    }
  } else if (since_ >= explore_after_) {
    is_exploring_ = true;
    best_ = arrived;
    stalls_ = 0;
    return window;
  } else {
    hold(arrived, loss, interval.has_queue);
  }
  return std::min(std::max(kRoom * rate_ * seconds(longest_rtt_), kMinHeldWindow), max_window_);
}

// Whether to go on.
bool RateHold::explore(double arrived, double loss) {
  stalls_ = arrived > kGrowth * best_ ? 0 : stalls_ + 1;
  best_ = std::max(best_, arrived);
  if (stalls_ < kStalls && loss < kHopelessLoss) {
    return true;
  }
  const bool has_found = best_ > kGrowth * link_rate_;
  explore_after_ = has_found ? kExploreSoon : std::min(2 * explore_after_, kExploreRarely);
  link_rate_ = std::max({best_, kForget * link_rate_, 1.0});
  rate_ = kHeadroom * goal_ * link_rate_;
  is_exploring_ = false;
  since_ = {};
  return false;
}

void RateHold::hold(double arrived, double loss, bool has_queue) {
  mean_loss_ += (loss - mean_loss_) / 32;
  if (mean_loss_ > kCrowdLoss) {
    mean_loss_ = kLossAfter;
    goal_ = std::max(goal_ / 2, kMinGoal);
    rate_ = kHeadroom * goal_ * link_rate_;
    return;
  }
  goal_ = std::min(goal_ + kGoalGain, kWanted);
  if (!has_queue) {
    has_spare_ = true;
    link_rate_ = std::max(link_rate_, arrived);
    rate_ =
        std::clamp(kMaxChange * rate_, goal_ * link_rate_, std::max(kSpare * link_rate_, rate_));
    return;
  }
  const double wanted = goal_ * link_rate_;
  if (std::exchange(has_spare_, false)) {
    rate_ = kHeadroom * wanted;
  }
  rate_ *= std::clamp(wanted / std::max(arrived, 1.0), 1 / kMaxChange, kMaxChange);
  rate_ = std::clamp(rate_, kMinRate * wanted, kMaxRate * wanted);
}

}  // namespace harp
