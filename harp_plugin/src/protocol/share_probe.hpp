// How much of a queue is ours, found by trying: the window is held for two rounds, then made
// smaller for three, and what the round trip makes of it is looked at.
//
// Where a link is full, window and round trip go together: with W packets of ours and V of others
// in flight, a round trip takes (W + V) / rate. A window that shrinks by a part d of itself shrinks
// the round trip by d W / (W + V): our share of the link is the one change divided by the other.
// Nobody needs to know the rate, or what the path takes without a queue. Who is alone, or among
// sessions that shrink theirs at the same time, finds 1; who shares with TCP finds his share.
//
// The window must not shrink below what fills the link, as then all of the queue is gone and tells
// nothing: no more, therefore, than the least round trip is below the present one, nor than a half.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time.hpp"

namespace harp {

class ShareProbe {
 public:
  bool is_on() const { return rounds_ > 0; }
  /// The window has been changed.
  bool is_dipping() const { return rounds_ > kSettleRounds; }
  void start() {
    rounds_ = 1;
    is_deep_ = false;
    is_upward_ = false;
    after_ = {};
  }
  /// To see more of the path than before: by half, whatever is known of it.
  void start_deep() {
    start();
    is_deep_ = true;
  }
  /// Makes the window larger instead: the answer where the path may be as long as the queue.
  void start_upward() {
    start();
    is_upward_ = true;
  }
  /// Without holding the window first: somebody else makes his smaller, says the round trip.
  void join(Duration rtt, Duration min_rtt, bool is_deep) {
    start();
    is_deep_ = is_deep;
    before_ = rtt;
    rounds_ = kSettleRounds;
    on_round(rtt, min_rtt);
  }
  void cancel() { rounds_ = 0; }
  /// A probe looks at the path, not at the share.
  bool is_deep() const { return is_deep_; }
  /// The round trip before the window shrank, and while it was small.
  Duration before() const { return before_; }
  Duration after() const { return after_; }
  /// Part of the window that may be used; more than 1 in an upward probe.
  double factor() const { return is_dipping() ? factor_ : 1; }

  /// After a round whose least round trip was `rtt`, of which `min_rtt` is the path's. Returns our
  /// share when it has been found.
  std::optional<double> on_round(Duration rtt, Duration min_rtt) {
    if (rounds_ == kSettleRounds - 1) {
      before_ = rtt;
    } else if (rounds_ == kSettleRounds) {
      before_ = (before_ + rtt) / 2;
      factor_ = is_upward_ ? kUpwardFactor
                : is_deep_ ? kDeepFactor
                           : std::clamp(seconds(min_rtt) / seconds(rtt), kMinFactor, kMaxFactor);
    } else if (rounds_ > kSettleRounds + kDipRounds - kMeasuredRounds) {
      after_ += rtt / kMeasuredRounds;
    }
    if (++rounds_ <= kSettleRounds + kDipRounds) {
      return std::nullopt;
    }
    rounds_ = 0;
    return std::clamp((1 - seconds(after_) / seconds(before_)) / (1 - factor_), 0.0, 1.0);
  }

 private:
  static constexpr int kSettleRounds = 3;
  static constexpr int kDipRounds = 5;
  static constexpr int kMeasuredRounds = 3;
  static constexpr double kDeepFactor = 0.25;
  static constexpr double kUpwardFactor = 1.5;
  static constexpr double kMinFactor = 0.5;
  static constexpr double kMaxFactor = 0.65;

  int rounds_ = 0;  ///< Begun; 0: it is off.
  bool is_deep_ = false;
  bool is_upward_ = false;
  double factor_ = 1;
  Duration before_{};
  Duration after_{};
};

}  // namespace harp
