// What a session sends, and when. Each call of poll_transmit() writes at most one packet; the order
// of the functions below is the order of importance.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/time.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/auth.hpp"
#include "protocol/control_packet.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"
#include "protocol/send_queue.hpp"
#include "protocol/session.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

/// Packets in a row on one path are a batch that leaves as one segmented send: as many as the pacer
/// lets go at once. After a pause the path goes on until it has had so many.
constexpr int kMinBurstPackets = 8;
constexpr std::array<std::byte, kMaxPss> kPadding{};

}  // namespace

bool Session::poll_transmit(Time now, TransmitPacket& out) {  // hot
  if (now != last_run_) {
    last_run_ = now;
    run_timers(now);
  }
  out.payload = {};
  bool has_packet = false;
  switch (state_) {
    case State::kFinished:
      break;
    case State::kConnecting:
      has_packet = transmit_handshake(now, out);
      break;
    case State::kLingering:
      has_packet = transmit_control(now, out);
      break;
    case State::kEstablished:
      has_packet = transmit_control(now, out) || transmit_data(now, out);
      break;
  }
  stats_.packets_sent += has_packet ? 1 : 0;
  return has_packet;
}

void Session::run_timers(Time now) {
  on_call(now);
  if (state_ == State::kConnecting && now >= started() + config_.connect_timeout) {
    fail(SessionError::kConnectTimeout, false, now);
  }
  if (state_ == State::kLingering && now >= closing_.linger_until()) {
    state_ = State::kFinished;
  }
  if (state_ != State::kEstablished) {
    return;
  }
  if (const SessionError error = liveness_.verdict(now); error != SessionError::kNone) {
    fail(error, true, now);
    return;
  }
  detect_losses(now);
  if (closing_.is_overdue(sent_.oldest(), now)) {
    finish_close(now);
  }
}

bool Session::transmit_handshake(Time now, TransmitPacket& out) {
  if (now < handshake_.next_try_at()) {
    return false;
  }
  Offer offer = make_offer();
  const ControlPacket packet = handshake_.next_try(offer, now);
  pss_ = offer.pss;
  emit(packet, handshake_.try_key(), now, out);
  out.payload = std::span(kPadding).first(pss_ - packet.body_bytes);
  return true;
}

bool Session::transmit_control(Time now, TransmitPacket& out) {
  ControlPacket packet;
  const std::size_t paths = paths_.count();
  const bool has_packet = answers_.take_reset(paths, packet) ||
                          handshake_.take_conf(pss_, paths, now, packet) || take_ack(now, packet) ||
                          answers_.take_probe_answer(paths, packet) ||
                          (state_ == State::kEstablished && take_question(now, packet));
  if (has_packet) {
    emit(packet, handshake_.tx_key(), now, out);
  }
  return has_packet;
}

bool Session::take_ack(Time now, ControlPacket& packet) {
  if (ack_.due_at() > now) {
    return false;
  }
  AckBody ack;
  ack.msg_limit = receiver_.msg_limit();
  window_in_->fill(ack);
  ack_.fill(ack, now);
  packet.type = PacketType::kAck;
  packet.path = ack_.answer_path(paths_.count());
  packet.body_bytes = encode_ack(ack, packet.buffer);
  ++stats_.acks_sent;
  return true;
}

/// Whether a path, or the peer, is alive.
bool Session::take_question(Time now, ControlPacket& packet) {
  packet.body_bytes = 0;
  if (const PathIndex path = paths_.take_probe(now); path != kNoPath) {
    packet.type = PacketType::kProbe;
    packet.path = path;
    ++stats_.probes_sent;
    return true;
  }
  const bool blocked = is_blocked_by_credit();
  if (liveness_.heartbeat_at(blocked) > now) {
    return false;
  }
  liveness_.on_heartbeat_sent(blocked, now);
  packet.type = PacketType::kHeartbeat;
  // Around all paths: one of them may swallow everything.
  packet.path = static_cast<PathIndex>(stats_.heartbeats_sent++ % paths_.count());
  return true;
}

bool Session::transmit_data(Time now, TransmitPacket& out) {  // hot
  if (sent_.lost() > 0 && may_send_data(now)) {
    const Psn psn = sent_.front(SentPackets::kLostList);
    emit_data(psn, flag::kRetx, sent_.at(psn).path, now, out);
    return true;
  }
  if (loss_.take_tail_probe(sent_, paths_, now)) {
    ++stats_.tail_probes;
    const Psn psn = newest_in_flight();
    emit_data(psn, flag::kRetx | flag::kAckReq, sent_.at(psn).path, now, out);
    return true;
  }
  if (!queue_.has_uncut() && !wants_fin()) {
    burst_.is_over = true;
    return false;
  }
  if (sent_.lost() > 0 || !may_send_data(now)) {
    return false;
  }
  Psn psn = 0;
  if (!cut_next(psn)) {
    return false;
  }
  emit_data(psn, 0, kNoPath, now, out);
  return true;
}

bool Session::may_send_data(Time now) {
  if (sent_.in_flight() < congestion_.window_packets() && pacer_.may_send(now, waiting_bytes())) {
    return true;
  }
  round_.window_was_used = true;
  burst_.is_over = true;
  return false;
}

/// What would leave now, but for window and pacer.
std::size_t Session::waiting_bytes() const {
  return queue_.uncut_bytes() + std::size_t{sent_.lost()} * pss_;
}

bool Session::cut_next(Psn& psn) {
  if (!window_has_room()) {
    return false;
  }
  psn = sent_.next();
  if (wants_fin()) {
    closing_.on_fin_made(psn);
    SentPacket& fin = sent_.add();
    fin.msg_seq = queue_.next();
    fin.is_fin = true;
    return true;
  }
  const MsgSeq msg = queue_.cutting();
  const bool blocked = !credit_->permits(msg, psn, queue_.is_at_start());
  if (blocked && !was_blocked_by_credit_) {
    ++stats_.credit_stalls;
  }
  was_blocked_by_credit_ = blocked;
  if (blocked) {
    return false;
  }
  if (queue_.is_at_start()) {
    credit_->on_message_started(msg, psn);
  }
  SentPacket& packet = sent_.add();
  packet.msg_seq = msg;
  packet.msg_off = queue_.cut_off();
  packet.len = queue_.cut_len(pss_);
  packet.flags = queue_.cut(packet.len);
  return true;
}

Psn Session::newest_in_flight() const {
  Psn psn = sent_.next() - 1;
  while (sent_.at(psn).state != SentPacket::State::kInFlight) {
    --psn;
  }
  return psn;
}

void Session::emit_data(Psn psn,
                        std::uint8_t flags,
                        PathIndex avoid,
                        Time now,
                        TransmitPacket& out) {  // hot
  const bool is_new = flags == 0;
  if (is_new && sent_.in_flight() == 0 && sent_.lost() == 0) {
    round_ = {};
    round_start_ = now;
    round_end_ = psn;
    round_is_over_ = false;
  }
  const PathIndex path = choose_path(avoid);
  const PathSeq path_seq = paths_.at(path).next_seq++;
  sent_.on_sent(psn, path, path_seq, now);
  loss_.on_sent(now);
  const SentPacket& packet = sent_.at(psn);
  const std::uint8_t crc = config_.payload_crc && !packet.is_fin ? flag::kCrc : std::uint8_t{0};
  const Header header{.type = packet.is_fin ? PacketType::kFin : PacketType::kData,
                      .flags = static_cast<std::uint8_t>(packet.flags | flags | crc),
                      .path = path,
                      .dst_cid = peer_.cid,
                      .psn = psn,
                      .path_seq = path_seq,
                      .msg_seq = packet.msg_seq,
                      .msg_off = packet.msg_off,
                      .len = packet.len,
                      .tag = packet.is_fin ? std::uint16_t{0} : queue_.tag(packet.msg_seq),
                      .tx_time = wire_time(now)};
  const auto payload = packet.is_fin ? std::span<const std::byte>()
                                     : queue_.payload(packet.msg_seq, packet.msg_off, packet.len);
  seal_packet(handshake_.tx_key(), header, payload, out.head);
  out.payload = payload;
  out.head_bytes = kHeaderBytes;
  out.path = path;
  out.flow = paths_.at(path).flow;
  pacer_.on_sent(packet.len + kHeaderBytes + kIpUdpBytes, now);
  ++stats_.data_packets_sent;
  stats_.data_bytes_sent += packet.len;
  stats_.data_bytes_retransmitted += is_new ? 0U : packet.len;
}

void Session::emit(const ControlPacket& packet, const Key& key, Time now, TransmitPacket& out) {
  const Header header{.type = packet.type,
                      .path = packet.path,
                      .dst_cid = peer_.cid,
                      .len = static_cast<std::uint16_t>(packet.body_bytes),
                      .tx_time = wire_time(now)};
  std::ranges::copy(packet.body(), out.head.begin() + kHeaderBytes);
  seal_packet(key, header, packet.body(), out.head);
  out.head_bytes = kHeaderBytes + packet.body_bytes;
  out.path = packet.path;
  out.flow = paths_.at(packet.path).flow;
}

PathIndex Session::choose_path(PathIndex avoid) {
  const auto in_flight = [this](PathIndex path) { return sent_.in_flight_on(path); };
  if (avoid != kNoPath) {
    return paths_.choose(rng_, avoid, in_flight);
  }
  // What follows a pause stays together, if it can.
  const auto is_enough = [this] {
    return burst_.sent >= std::min(kMinBurstPackets, pacer_.burst_packets()) ||
           queue_.uncut_packets(pss_) >= static_cast<std::size_t>(burst_.left);
  };
  if (burst_.left <= 0 || (burst_.is_over && is_enough()) || paths_.at(burst_.path).in_quarantine) {
    burst_ = {.path = paths_.choose(rng_, kNoPath, in_flight), .left = pacer_.burst_packets()};
  }
  burst_.is_over = false;
  --burst_.left;
  ++burst_.sent;
  return burst_.path;
}

Time Session::data_deadline() const {
  if (sent_.in_flight() >= congestion_.window_packets()) {
    return kNever;
  }
  const bool has_new =
      window_has_room() && (wants_fin() || (queue_.has_uncut() && !is_blocked_by_credit()));
  return sent_.lost() > 0 || has_new ? pacer_.ready_at(waiting_bytes()) : kNever;
}

}  // namespace harp
