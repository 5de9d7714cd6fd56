// The end of a session: this end's FIN, the peer's FIN, and the time after both, in which a peer
// that has missed an answer may still ask.
#pragma once

#include <algorithm>
#include <optional>

#include "base/serial.hpp"
#include "base/time.hpp"
#include "protocol/session_config.hpp"
#include "protocol/types.hpp"

namespace harp {

class Closing {
 public:
  explicit Closing(const SessionConfig& config)
      : fin_timeout_(config.close_timeout),
        linger_(config.linger),
        // A peer that has not closed may still wait for an acknowledgement, and ask for it late.
        max_linger_(std::max(config.peer_timeout, config.linger)) {}

  // --- This end
  void begin() { has_begun_ = true; }
  bool has_begun() const { return has_begun_; }
  /// The FIN follows the last message.
  bool wants_fin(bool has_messages) const { return has_begun_ && !fin_ && !has_messages; }
  void on_fin_made(Psn psn) { fin_ = psn; }
  void on_fin_acked() { fin_was_acked_ = true; }
  bool fin_was_acked() const { return fin_was_acked_; }
  /// Everything before `oldest` was acknowledged. Where only the FIN is left, the close is as good
  /// as done, even if the peer is gone; true once that has lasted for the timeout.
  bool is_overdue(Psn oldest, Time now) {
    if (!only_fin_is_left(oldest)) {
      return false;
    }
    if (fin_deadline_ == kNever) {
      fin_deadline_ = now + fin_timeout_;
    }
    return now >= fin_deadline_;
  }
  Time overdue_at(Psn oldest) const { return only_fin_is_left(oldest) ? fin_deadline_ : kNever; }

  // --- The peer
  void on_peer_fin(Psn psn, MsgSeq end) {
    peer_fin_ = psn;
    peer_end_ = end;
  }
  /// No honest peer sends anything behind its FIN.
  bool is_behind_peer_fin(Psn psn) const { return peer_fin_ && !serial_less(psn, *peer_fin_); }
  /// Everything before `arrived` has arrived. True when the peer's FIN is among it, once.
  bool peer_ends_now(Psn arrived) {
    if (peer_has_closed_ || !peer_fin_ || !serial_less(*peer_fin_, arrived)) {
      return false;
    }
    peer_has_closed_ = true;
    return true;
  }
  /// The first message that will not come, once the peer has closed.
  MsgSeq peer_end() const { return peer_end_; }
  bool never_comes(MsgSeq message) const {
    return peer_has_closed_ && !serial_less(message, peer_end_);
  }

  // --- Afterwards
  void linger(bool has_failed, Time now) {
    linger_until_ = now + (peer_has_closed_ || has_failed ? linger_ : max_linger_);
    max_linger_until_ = now + max_linger_;
  }
  /// The peer still talks.
  void on_heard(Time now) {
    linger_until_ = std::min(std::max(linger_until_, now + linger_), max_linger_until_);
  }
  /// The peer has closed as well.
  void shorten(Time now) { linger_until_ = std::min(linger_until_, now + linger_); }
  Time linger_until() const { return linger_until_; }

 private:
  bool only_fin_is_left(Psn oldest) const { return fin_ && oldest == *fin_; }

  Duration fin_timeout_;
  Duration linger_;
  Duration max_linger_;
  bool has_begun_ = false;
  std::optional<Psn> fin_;
  bool fin_was_acked_ = false;
  Time fin_deadline_ = kNever;
  std::optional<Psn> peer_fin_;
  MsgSeq peer_end_ = 0;
  bool peer_has_closed_ = false;
  Time linger_until_ = kNever;
  Time max_linger_until_ = kNever;
};

}  // namespace harp
