// What arriving packets do to a session. Nothing here looks at a field before the MAC was checked.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/serial.hpp"
#include "base/time.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/auth.hpp"
#include "protocol/events.hpp"
#include "protocol/handshake.hpp"
#include "protocol/message_receiver.hpp"
#include "protocol/packet.hpp"
#include "protocol/receive_window.hpp"
#include "protocol/session.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

constexpr Duration kWireUnit = from_wire_duration(1);

/// What a reason in the peer's RST means here.
SessionError from_peer(SessionError reason) {
  switch (reason) {
    case SessionError::kMessageTooLong:
    case SessionError::kProtocolViolation:
    case SessionError::kPeerTimeout:  // The network has failed between the two, in either
                                      // direction.
    case SessionError::kNoProgress:
      return reason;
    default:
      return SessionError::kPeerClosed;
  }
}

}  // namespace

Placement Session::on_packet(std::span<const std::byte> packet,
                             Time now,
                             const Reception& how) {  // hot
  ++stats_.packets_received;
  heard_path_ = kNoPath;
  heard_update_ = false;
  const auto view = parse_packet(packet);
  if (!view || state_ == State::kFinished) {
    ++stats_.bad_packets;
    return {};
  }
  const PacketType type = view->header.type;
  if (type == PacketType::kSyn) {
    on_syn_again(*view, how, now);
    return {};
  }
  if (view->header.dst_cid != config_.local_cid) {
    ++stats_.bad_packets;
    return {};
  }
  if (type == PacketType::kSynAck) {
    on_syn_ack(*view, how, now);
    return {};
  }
  if (!handshake_.has_keys() || !accept_auth(*view)) {
    ++stats_.bad_auth;
    return {};
  }
  heard_path_ = view->header.path;
  on_call(now);
  liveness_.on_heard(now);
  last_run_ = Time::min();            // What arrived may have made a timer due.
  if (state_ == State::kLingering) {  // It still talks.
    closing_.on_heard(now);
  }
  if (state_ == State::kConnecting) {
    on_conf(*view, how, now);
    return {};
  }
  if (error_ != SessionError::kNone) {  // Lingering after a failure: the peer does not know yet.
    if (type == PacketType::kRst) {
      state_ = State::kFinished;
    } else {
      answers_.reset_on(error_, view->header.path);
    }
    return {};
  }
  if (type == PacketType::kData || type == PacketType::kFin) {
    return on_sequenced(*view, how, now);
  }
  on_control(*view, how, now);
  return {};
}

bool Session::accept_auth(const PacketView& packet) const {
  return is_authentic(handshake_.rx_key(), packet);
}

void Session::on_syn_again(const PacketView& packet, const Reception& how, Time now) {
  if (handshake_.is_client() || state_ != State::kConnecting) {
    return;
  }
  const auto syn = handshake_.on_syn(packet, now - how.waited, now);
  if (!syn) {
    ++stats_.bad_auth;
    return;
  }
  heard_path_ = packet.header.path;
  pss_ = std::min(pss_, syn->offer.pss);  // The client came down the ladder.
}

void Session::on_syn_ack(const PacketView& packet, const Reception& how, Time now) {
  SynAck syn_ack;
  switch (handshake_.on_syn_ack(packet, now - how.waited, syn_ack)) {
    case HandshakeMachine::Verdict::kMalformed:
      ++stats_.bad_packets;
      return;
    case HandshakeMachine::Verdict::kForged:
      ++stats_.bad_auth;
      return;
    case HandshakeMachine::Verdict::kRepeated:
      return;
    case HandshakeMachine::Verdict::kNew:
      break;
  }
  pss_ = config_.max_pss;
  use_offer(syn_ack.offer);
  if (syn_ack.echo.delay != kNoEcho) {
    take_rtt_sample(0, syn_ack.echo.tx_time, syn_ack.echo.delay, now - how.waited);
  }
  establish(now);
}

void Session::on_conf(const PacketView& packet, const Reception& how, Time now) {
  const auto conf =
      packet.header.type == PacketType::kConf ? parse_conf(packet.body) : std::nullopt;
  if (!conf || conf->pss > config_.max_pss) {
    return;  // Data before the CONF: it will be sent again.
  }
  pss_ = conf->pss;
  if (conf->echo.delay != kNoEcho) {
    take_rtt_sample(0, conf->echo.tx_time, conf->echo.delay, now - how.waited);
  }
  establish(now);
}

void Session::on_control(const PacketView& packet, const Reception& how, Time now) {
  const Header& header = packet.header;
  switch (header.type) {
    case PacketType::kAck:
      if (const auto ack = parse_ack(packet.body)) {
        on_ack(*ack, how, now);
      } else {
        ++stats_.bad_packets;
      }
      return;
    case PacketType::kRst:
      if (state_ == State::kLingering) {
        state_ = State::kFinished;
      } else if (const auto reason = parse_reset(packet.body)) {
        if (closing_.has_begun() && queue_.unfinished() == 0) {
          finish_close(now);
        } else {
          fail(from_peer(*reason), false, now);
        }
      }
      return;
    case PacketType::kProbe:
      answers_.on_probe(header, how.waited);
      return;
    case PacketType::kProbeAck:
      if (const auto echo = parse_echo(packet.body); echo && header.path < paths_.count()) {
        paths_.on_alive(header.path, now);
        take_rtt_sample(header.path, echo->tx_time, echo->delay, now - how.waited);
      }
      return;
    case PacketType::kHeartbeat:
      ack_.on_request(header, how, now);
      return;
    default:
      return;  // A CONF that was repeated.
  }
}

Placement Session::on_sequenced(const PacketView& packet, const Reception& how, Time now) {  // hot
  const Header& header = packet.header;
  Placement placement;
  switch (window_in_->examine(header.psn)) {
    case ReceiveWindow::Verdict::kOutside:
      ++stats_.bad_packets;
      return placement;
    case ReceiveWindow::Verdict::kDuplicate:
      ++stats_.duplicates;
      ack_.on_data(header, true, how, now);
      return placement;
    case ReceiveWindow::Verdict::kNew:
      break;
  }
  if (closing_.is_behind_peer_fin(header.psn)) {
    fail(SessionError::kProtocolViolation, true, now);
    return placement;
  }
  if (header.type == PacketType::kFin) {
    closing_.on_peer_fin(header.psn, header.msg_seq);
  } else if (!take_data(packet, now, placement)) {
    return {};
  }
  window_in_->accept(header.psn);
  heard_update_ = true;
  ack_.on_data(header, false, how, now);
  if (closing_.peer_ends_now(window_in_->cum())) {
    on_peer_end(now);
  }
  return placement;
}

bool Session::take_data(const PacketView& packet, Time now, Placement& placement) {  // hot
  if (closing_.has_begun()) {
    if (state_ == State::kLingering) {
      answers_.reset_on(SessionError::kCancelled, packet.header.path);  // Nobody will take it.
    }
    return false;
  }
  switch (receiver_.on_data(packet, events_, placement)) {
    case MessageReceiver::Verdict::kTaken:
      ++stats_.data_packets_received;
      stats_.data_bytes_received += packet.header.len;
      return true;
    case MessageReceiver::Verdict::kNoRoom:
      ++stats_.no_room;
      return false;
    case MessageReceiver::Verdict::kTooLong:
      fail(SessionError::kMessageTooLong, true, now);
      return false;
    case MessageReceiver::Verdict::kViolation:
      fail(SessionError::kProtocolViolation, true, now);
      return false;
  }
  return false;
}

void Session::on_peer_end(Time now) {
  receiver_.fail_from(closing_.peer_end(), SessionError::kPeerClosed, events_);
  if (state_ == State::kLingering) {
    closing_.shorten(now);
    return;
  }
  events_.push({.kind = Event::Kind::kPeerClosed});
  on_call(now);
}

void Session::on_ack(const AckBody& ack, const Reception& how, Time now) {  // hot
  const std::int32_t in_window = serial_distance(sent_.oldest(), sent_.next());
  if (serial_distance(sent_.oldest(), ack.cum_psn) > in_window) {
    ++stats_.bad_packets;
    return;
  }
  const bool more_credit = credit_->on_ack(ack.msg_limit);
  acked_now_ = 0;
  while (serial_less(sent_.oldest(), ack.cum_psn)) {
    ack_one(sent_.oldest());
  }
  for (std::uint32_t word = 0; word < ack.sack_words; ++word) {
    const Psn base = ack.cum_psn + 64 * word;
    if (!serial_less(sent_.oldest(), base + 64) || !serial_less(base, sent_.next())) {
      continue;
    }
    std::uint64_t fresh = ack.sack[word] & ~sent_.acked_word(base);
    for (; fresh != 0; fresh &= fresh - 1) {
      const Psn psn = base + static_cast<Psn>(std::countr_zero(fresh));
      if (!serial_less(psn, sent_.oldest()) && serial_less(psn, sent_.next())) {
        ack_one(psn);
      }
    }
  }
  if (ack.echo_path < paths_.count()) {
    take_rtt_sample(ack.echo_path, ack.echo_tx_time, ack.echo_delay, now - how.waited);
  }
  for (std::size_t i = 0; i < ack.path_count; ++i) {
    const AckBody::PathReport& report = ack.paths[i];
    if (report.path < paths_.count()) {
      paths_.on_report(report.path, report.newest, now);
      const bool moves = report.is_astray && paths_.on_astray(report.path, report.newest);
      stats_.paths_moved += moves ? 1 : 0;
    }
  }
  const bool was_needless = loss_.on_spurious_report(ack.spurious);
  if (acked_now_ > 0 || more_credit) {
    liveness_.on_progress(now);
  }
  if (acked_now_ > 0) {
    loss_.on_progress(now);
    end_timeout(ack, was_needless);
    congestion_.on_ack(acked_now_, Duration(-1), paths_.min_rtt(), round_.window_was_used);
  }
  detect_losses(now);
  if (round_is_over_) {
    finish_round(now);
  }
  set_rates();
  if (closing_.fin_was_acked() && sent_.all_acked() && state_ == State::kEstablished) {
    finish_close(now);
  }
}

/// What times out is lost, or its answer is late. It was late where the answer is to something that
/// was sent before (Eifel detection, RFC 3522), or the peer had what was sent again.
void Session::end_timeout(const AckBody& ack, bool retransmitted_needlessly) {
  if (!timed_out_at_) {
    return;
  }
  const bool is_late =
      ack.echo_path != kNoPath && serial_less(ack.echo_tx_time, wire_time(*timed_out_at_));
  const bool was_spurious = is_late || retransmitted_needlessly;
  if (was_spurious) {
    round_.lost_packets = 0;
  }
  congestion_.end_timeout(was_spurious);
  timed_out_at_.reset();
}

void Session::ack_one(Psn psn) {  // hot
  const SentPacket& packet = sent_.at(psn);
  ++acked_now_;
  ++round_.delivered_packets;
  round_.delivered_bytes += packet.len + kHeaderBytes + kIpUdpBytes;
  round_is_over_ = round_is_over_ || !serial_less(psn, round_end_);
  if (packet.is_fin) {
    closing_.on_fin_acked();
  } else {
    queue_.on_acked(packet.msg_seq, events_);
  }
  sent_.on_acked(psn);
}

void Session::take_rtt_sample(PathIndex index,
                              std::uint32_t tx_time,
                              std::uint32_t delay,
                              Time arrival) {
  const std::uint32_t units = wire_time(arrival) - tx_time - delay;
  if (serial_distance(0, units) < 0) {
    return;  // Sent after it arrived: a clock of wire units may be one unit early.
  }
  const Duration rtt = from_wire_duration(units);
  const Duration response = rtt + from_wire_duration(delay);
  const Time sent_at = arrival - response;
  if (sent_at < liveness_.resumed_at()) {
    return;  // This end was asleep in between.
  }
  // Each transmission gives one sample: a repeated packet, theirs or ours, would pass its age off
  // as a round trip.
  Path& path = paths_.at(index);
  if (sent_at < path.newest_echo + kWireUnit) {
    return;
  }
  path.newest_echo = sent_at;
  RttEstimator& estimator = path.rtt;
  const Duration minimum = estimator.has_sample() ? estimator.minimum() : paths_.min_rtt();
  estimator.add_sample(rtt, response, arrival);
  round_.peer_wait = std::max(round_.peer_wait, response - rtt - config_.ack_delay);
  if (minimum > Duration::zero()) {
    congestion_.on_ack(0, std::max(rtt - minimum, Duration::zero()), paths_.min_rtt(), false);
  }
}

void Session::finish_round(Time now) {
  round_.elapsed = now - round_start_;
  congestion_.on_round(round_, paths_.best_rtt(), paths_.min_rtt());
  loss_.on_round();
  round_ = {};
  round_start_ = now;
  round_end_ = sent_.next();
  round_is_over_ = false;
}

void Session::find_overtaken(Time now) {
  loss_.find_overtaken(sent_, paths_, now, [this](Psn psn) {
    sent_.on_lost(psn);
    ++round_.lost_packets;
    ++stats_.retransmitted_order;
  });
}

void Session::detect_losses(Time now) {
  find_overtaken(now);
  if (loss_.next_timeout(sent_, paths_) > now) {
    return;
  }
  bool all_dark = false;
  const std::size_t usable_before = paths_.usable_count();
  // Paths that know no round trip go by the best of the others, so each quarantine may make more
  // packets late.
  std::size_t usable = 0;
  do {
    usable = paths_.usable_count();
    loss_.find_timed_out(sent_, paths_, now, [&](Psn psn) {
      const SentPacket& packet = sent_.at(psn);
      const Duration rto = loss_.rto(paths_, packet.path);
      all_dark = !paths_.on_timeout(packet.path, packet.sent_at, now, rto) || all_dark;
      sent_.on_lost(psn);
      ++round_.lost_packets;
      ++stats_.retransmitted_timeout;
    });
    find_overtaken(now);
  } while (paths_.usable_count() < usable);
  stats_.paths_quarantined += usable_before - paths_.usable_count();
  loss_.on_timeout();
  if (all_dark) {
    congestion_.on_timeout();
    timed_out_at_ = now;
  }
}

}  // namespace harp
