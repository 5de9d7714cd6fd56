// The life of a session: making it, posting to it, ending it. What packets do to it is in
// session_receive.cpp, what it sends in session_transmit.cpp.
#include "protocol/session.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "protocol/auth.hpp"
#include "protocol/events.hpp"
#include "protocol/handshake.hpp"
#include "protocol/message_receiver.hpp"
#include "protocol/send_queue.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

MessageReceiver::Limits receiver_limits(const SessionConfig& config) {
  return {.max_receives = config.max_receives, .eager_packets = config.eager_packets};
}

Congestion::Limits congestion_limits(const SessionConfig& config) {
  return {.max_packets = static_cast<double>(config.window_packets),
          .min_allowance = config.queue_allowance,
          .competes = config.competes};
}

}  // namespace

Session::Session(const SessionConfig& config, const HandshakeMachine& handshake)
    : config_(config),
      handshake_(handshake),
      pss_(config.max_pss),
      window_(config.window_packets),
      rng_(config.seed),
      first_psn_(config.initial_psn.value_or(static_cast<Psn>(rng_()))),
      first_msg_(config.initial_msg.value_or(static_cast<MsgSeq>(rng_()))),
      events_(std::size_t{config.max_sends} + config.max_receives),
      queue_(first_msg_, config.max_sends),
      sent_(first_psn_, config.window_packets),
      paths_(config.paths, handshake.is_client() ? config.flows : config.paths),
      loss_(config.min_rto, config.max_rto),
      congestion_(congestion_limits(config)),
      round_end_(first_psn_),
      receiver_(receiver_limits(config)),
      ack_(config.ack_delay),
      liveness_(config.peer_timeout, config.heartbeat_interval),
      last_run_(Time::min()),
      closing_(config) {}

Session::Session(const SessionConfig& config,
                 const Secret& secret,
                 std::uint64_t listen_id,
                 Time now)
    : Session(config, HandshakeMachine(secret, config.nonce, listen_id, now)) {}

Session::Session(const SessionConfig& config,
                 const Secret& secret,
                 const Syn& syn,
                 std::uint32_t syn_tx_time,
                 Time now)
    : Session(config, HandshakeMachine(secret, config.nonce, syn, syn_tx_time, now)) {
  use_offer(syn.offer);
}

Offer Session::make_offer() const {
  return {.cid = config_.local_cid,
          .initial_psn = first_psn_,
          .initial_msg = first_msg_,
          .window_packets = config_.window_packets,
          .pss = pss_,
          .paths = config_.paths,
          .eager_packets = config_.eager_packets,
          .buffer_bytes = config_.buffer_bytes};
}

void Session::use_offer(const Offer& peer) {
  peer_ = peer;
  pss_ = std::min(pss_, peer.pss);
  window_ = std::min(window_, peer.window_packets);
  paths_.limit(peer.paths);
  congestion_.set_peer_buffer(peer.buffer_bytes);
}

void Session::establish(Time now) {
  state_ = State::kEstablished;
  credit_.emplace(first_msg_, peer_.eager_packets, config_.max_sends);
  window_in_.emplace(peer_.initial_psn, window_);
  receiver_.start(peer_.initial_msg, pss_);
  liveness_.on_heard(now);
  if (receiver_.posted() > 0) {
    ack_.on_update(now);
  }
  set_rates();
  events_.push({.kind = Event::Kind::kConnected});
}

const char* Session::state_name() const {
  switch (state_) {
    case State::kConnecting:
      return "connecting";
    case State::kEstablished:
      return closing_.has_begun() ? "closing" : "open";
    case State::kLingering:
      return "lingering";
    case State::kFinished:
      break;
  }
  return "finished";
}

void Session::set_rates() {
  const std::size_t packet_bytes = pss_ + kHeaderBytes + kIpUdpBytes;
  pacer_.set_rate(congestion_.pacing_rate(paths_.best_rtt(), packet_bytes), packet_bytes);
}

std::size_t Session::reserved_events() const {
  return queue_.unfinished() + receiver_.posted() + events_.count();
}

bool Session::has_outstanding() const {
  return state_ == State::kEstablished && (queue_.unfinished() > 0 || receiver_.posted() > 0);
}

void Session::on_call(Time now) {
  const bool data_in_flight = queue_.unfinished() > 0 && sent_.in_flight() + sent_.lost() > 0;
  liveness_.on_call(has_outstanding(), data_in_flight, now);
}

PostResult Session::post_send(const SendRequest& request, Time now) {
  if (state_ == State::kLingering || state_ == State::kFinished || closing_.has_begun()) {
    return PostResult::kEnded;
  }
  if (request.data.size() > kMaxMessageBytes) {
    return PostResult::kTooLong;
  }
  if (!queue_.has_room() || reserved_events() >= config_.max_sends + config_.max_receives) {
    return PostResult::kFull;
  }
  queue_.post(request);
  last_run_ = Time::min();
  on_call(now);
  return PostResult::kPosted;
}

PostResult Session::post_receive(const ReceiveRequest& request, Time now) {
  if (state_ == State::kLingering || state_ == State::kFinished || closing_.has_begun() ||
      closing_.never_comes(receiver_.next_to_post())) {
    return PostResult::kEnded;
  }
  if (!receiver_.has_room() || reserved_events() >= config_.max_sends + config_.max_receives) {
    return PostResult::kFull;
  }
  if (receiver_.post(request, events_) == MessageReceiver::Verdict::kTooLong) {
    events_.push({.kind = Event::Kind::kReceiveDone,
                  .error = SessionError::kMessageTooLong,
                  .cookie = request.cookie});
    fail(SessionError::kMessageTooLong, true, now);
    return PostResult::kPosted;
  }
  if (state_ == State::kEstablished) {
    ack_.on_update(now);
  }
  on_call(now);
  return PostResult::kPosted;
}

void Session::close(Time now) {
  if (closing_.has_begun() || state_ == State::kLingering || state_ == State::kFinished) {
    return;
  }
  closing_.begin();
  receiver_.fail_all(SessionError::kCancelled, events_);
  on_call(now);
}

void Session::cancel(Time now) {
  fail(SessionError::kCancelled, true, now);
}

void Session::fail(SessionError error, bool tell_peer, Time now) {
  if (state_ == State::kLingering || state_ == State::kFinished) {
    return;
  }
  error_ = error;
  queue_.fail_all(error, events_);
  receiver_.fail_all(error, events_);
  events_.push({.kind = Event::Kind::kFailed, .error = error});
  if (!handshake_.has_keys()) {
    state_ = State::kFinished;
    return;
  }
  if (tell_peer) {
    answers_.reset_on_all(error, paths_.count());
  }
  linger(now);
}

void Session::finish_close(Time now) {
  events_.push({.kind = Event::Kind::kClosed});
  linger(now);
}

void Session::linger(Time now) {
  state_ = State::kLingering;
  closing_.linger(error_ != SessionError::kNone, now);
}

bool Session::is_blocked_by_credit() const {
  return state_ == State::kEstablished && queue_.has_uncut() &&
         !credit_->permits(queue_.cutting(), sent_.next(), queue_.is_at_start());
}

Time Session::next_deadline() const {
  constexpr Time kAtOnce{};
  switch (state_) {
    case State::kFinished:
      return kNever;
    case State::kConnecting:
      return std::min(handshake_.next_try_at(), started() + config_.connect_timeout);
    case State::kLingering:
      return answers_.any_resets() ? kAtOnce : std::min(ack_.due_at(), closing_.linger_until());
    case State::kEstablished:
      break;
  }
  if (answers_.any() || handshake_.conf_is_due()) {
    return kAtOnce;
  }
  return std::min({ack_.due_at(),
                   paths_.next_probe_at(),
                   liveness_.heartbeat_at(is_blocked_by_credit()),
                   liveness_.next_verdict(),
                   loss_.next_overtaken(sent_, paths_),
                   loss_.next_timeout(sent_, paths_),
                   loss_.tail_probe_at(sent_, paths_),
                   data_deadline(),
                   closing_.overdue_at(sent_.oldest())});
}

}  // namespace harp
