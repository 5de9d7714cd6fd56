// Whether the peer is alive, and when to ask.
//
// While anything is outstanding (a send, a posted receive, a close) a peer must be heard at least
// once per timeout; a heartbeat asks when it has been silent for an interval, and the peer's
// housekeeping answers, however busy its application is. A peer that answers but lets no data
// through for a whole timeout has failed as well. With nothing outstanding nothing is sent and
// nothing can fail.
//
// Silence is only the peer's fault while this end listens: when the owner did not call for long (a
// stopped process, a suspended machine), that time is not counted.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/time.hpp"
#include "protocol/types.hpp"

namespace harp {

class Liveness {
 public:
  Liveness(Duration timeout, Duration heartbeat_interval)
      : timeout_(timeout), interval_(std::min(heartbeat_interval, timeout / 4)) {}

  /// Every call of the owner; `in_flight` where data waits for an acknowledgement.
  void on_call(bool outstanding, bool in_flight, Time now) {
    const Duration gap = now - last_call_;
    if (gap > std::max(2 * interval_, timeout_ / 4)) {
      last_heard_ += gap;
      last_progress_ += gap;
      resumed_at_ = now;
    }
    last_call_ = now;
    if (outstanding && !outstanding_) {
      last_heard_ = std::max(last_heard_, now);
    }
    if (in_flight && !in_flight_) {
      last_progress_ = now;
    }
    outstanding_ = outstanding;
    in_flight_ = in_flight;
  }
  /// When the owner last came back after it had not called for long; epoch where it never did.
  Time resumed_at() const { return resumed_at_; }
  void on_heard(Time now) {
    last_heard_ = now;
    unanswered_ = 0;
  }
  void on_progress(Time now) {
    last_progress_ = now;
    blocked_interval_ = kFirstBlockedInterval;
  }

  /// kNone, kPeerTimeout or kNoProgress.
  SessionError verdict(Time now) const {
    if (outstanding_ && now >= last_heard_ + timeout_) {
      return SessionError::kPeerTimeout;
    }
    if (in_flight_ && now >= last_progress_ + timeout_) {
      return SessionError::kNoProgress;
    }
    return SessionError::kNone;
  }
  /// `blocked`: this end waits for credit, whose announcement may have been lost: it asks sooner.
  Time heartbeat_at(bool blocked) const {
    if (!outstanding_) {
      return kNever;
    }
    // After one without an answer others follow sooner: paths may be lossy, or lead nowhere.
    const Duration patience = unanswered_ > 0 ? interval_ / 4 : interval_;
    const Time alive_at = std::max(last_heard_, last_heartbeat_) + patience;
    // That the peer was heard says nothing about credit: only new credit is an answer to that.
    const Time blocked_at = std::max(last_progress_, last_heartbeat_) + blocked_interval_;
    return blocked ? std::min(alive_at, blocked_at) : alive_at;
  }
  void on_heartbeat_sent(bool blocked, Time now) {
    last_heartbeat_ = now;
    ++unanswered_;
    if (blocked) {
      blocked_interval_ = std::min(2 * blocked_interval_, interval_);
    }
  }
  /// When verdict() could change.
  Time next_verdict() const {
    const Time silence = outstanding_ ? last_heard_ + timeout_ : kNever;
    const Time standstill = in_flight_ ? last_progress_ + timeout_ : kNever;
    return std::min(silence, standstill);
  }

 private:
  static constexpr Duration kFirstBlockedInterval = std::chrono::milliseconds(5);

  Duration timeout_;
  Duration interval_;
  Duration blocked_interval_ = kFirstBlockedInterval;
  Time last_call_{};
  Time resumed_at_{};
  int unanswered_ = 0;  ///< Heartbeats since the peer was heard.
  Time last_heard_{};
  Time last_progress_{};
  Time last_heartbeat_{};
  bool outstanding_ = false;
  bool in_flight_ = false;
};

}  // namespace harp
