// What a session sends, and when. Each call of poll_transmit() writes at most one packet; the order
// of the functions below is the order of importance.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/time.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/auth.hpp"
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
constexpr std::uint32_t kTriesPerPss = 2;
constexpr Duration kMaxHandshakeInterval = std::chrono::seconds(1);
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
  if (state_ == State::kConnecting && now >= started_ + config_.connect_timeout) {
    fail(SessionError::kConnectTimeout, false, now);
  }
  if (state_ == State::kLingering && now >= linger_until_) {
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
  if (fin_ && sent_.oldest() == *fin_) {
    // Everything but the FIN arrived, so the close is as good as done, even if the peer is gone.
    if (close_deadline_ == kNever) {
      close_deadline_ = now + config_.close_timeout;
    } else if (now >= close_deadline_) {
      finish_close(now);
    }
  }
}

bool Session::transmit_handshake(Time now, TransmitPacket& out) {
  if (now < handshake_at_) {
    return false;
  }
  const bool is_client = role_ == Role::kClient;
  if (is_client && handshake_tries_ > 0 && handshake_tries_ % kTriesPerPss == 0) {
    pss_ = pss_ladder_next(pss_);
  }
  std::array<std::byte, kSynBytes> body{};
  std::size_t body_bytes = 0;
  if (is_client) {
    body_bytes =
        encode_syn({.listen_id = listen_id_, .nonce = config_.nonce, .offer = make_offer()}, body);
  } else {
    const Echo echo{.tx_time = echo_tx_time_, .delay = wire_duration(now - echo_arrival_)};
    body_bytes =
        encode_syn_ack({.nonce = config_.nonce, .offer = make_offer(), .echo = echo}, body);
  }
  const auto path = static_cast<PathIndex>(handshake_tries_ % config_.paths);
  emit(is_client ? PacketType::kSyn : PacketType::kSynAck,
       path,
       std::span(body).first(body_bytes),
       is_client ? syn_key(secret_) : tx_key(),
       now,
       out);
  out.payload = std::span(kPadding).first(pss_ - body_bytes);
  ++handshake_tries_;
  handshake_at_ = now + handshake_interval_;
  handshake_interval_ = std::min(2 * handshake_interval_, kMaxHandshakeInterval);
  return true;
}

bool Session::transmit_control(Time now, TransmitPacket& out) {
  std::array<std::byte, kMaxAckBytes> body;  // NOLINT: filled as far as it is used
  if (resets_due_ > 0) {
    --resets_due_;
    const std::size_t bytes = encode_reset(reset_reason_, body);
    const auto path = static_cast<PathIndex>(reset_path_++ % paths_.count());
    emit(PacketType::kRst, path, std::span(body).first(bytes), tx_key(), now, out);
    return true;
  }
  if (conf_due_) {
    conf_due_ = false;
    const Conf conf{.echo = {.tx_time = echo_tx_time_, .delay = wire_duration(now - echo_arrival_)},
                    .pss = pss_};
    const std::size_t bytes = encode_conf(conf, body);
    const auto path = static_cast<PathIndex>(conf_path_ % paths_.count());
    emit(PacketType::kConf, path, std::span(body).first(bytes), tx_key(), now, out);
    return true;
  }
  if (ack_.due_at() <= now) {
    AckBody ack;
    ack.msg_limit = receiver_.msg_limit();
    window_in_->fill(ack);
    ack_.fill(ack, now);
    const std::size_t bytes = encode_ack(ack, body);
    emit(PacketType::kAck,
         ack_.answer_path(paths_.count()),
         std::span(body).first(bytes),
         tx_key(),
         now,
         out);
    ++stats_.acks_sent;
    return true;
  }
  if (probe_answer_) {
    const auto path = static_cast<PathIndex>(*probe_answer_ % paths_.count());
    probe_answer_.reset();
    const std::size_t bytes = encode_echo(probe_echo_, body);
    emit(PacketType::kProbeAck, path, std::span(body).first(bytes), tx_key(), now, out);
    return true;
  }
  if (state_ != State::kEstablished) {
    return false;
  }
  if (const PathIndex path = paths_.take_probe(now); path != kNoPath) {
    emit(PacketType::kProbe, path, {}, tx_key(), now, out);
    ++stats_.probes_sent;
    return true;
  }
  const bool blocked = is_blocked_by_credit();
  if (liveness_.heartbeat_at(blocked) <= now) {
    liveness_.on_heartbeat_sent(blocked, now);
    // Around all paths: one of them may swallow everything.
    const auto path = static_cast<PathIndex>(stats_.heartbeats_sent++ % paths_.count());
    emit(PacketType::kHeartbeat, path, {}, tx_key(), now, out);
    return true;
  }
  return false;
}

bool Session::transmit_data(Time now, TransmitPacket& out) {  // hot
  if (sent_.lost() > 0 && may_send_data(now)) {
    const Psn psn = sent_.front(SentPackets::kLostList);
    emit_data(psn, flag::kRetx, sent_.at(psn).path, now, out);
    return true;
  }
  if (last_activity_ != now && tail_probe_at() <= now) {
    tail_probed_ = true;
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

bool Session::wants_fin() const {
  return closing_ && !fin_ && !queue_.has_uncut();
}

bool Session::cut_next(Psn& psn) {
  if (!window_has_room()) {
    return false;
  }
  psn = sent_.next();
  if (wants_fin()) {
    fin_ = psn;
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
  last_activity_ = now;
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
  seal_packet(tx_key(), header, payload, out.head);
  out.payload = payload;
  out.head_bytes = kHeaderBytes;
  out.path = path;
  out.flow = paths_.at(path).flow;
  pacer_.on_sent(packet.len + kHeaderBytes + kIpUdpBytes, now);
  ++stats_.data_packets_sent;
  stats_.data_bytes_sent += packet.len;
  stats_.data_bytes_retransmitted += is_new ? 0U : packet.len;
}

void Session::emit(PacketType type,
                   PathIndex path,
                   std::span<const std::byte> body,
                   const Key& key,
                   Time now,
                   TransmitPacket& out) {
  const Header header{.type = type,
                      .path = path,
                      .dst_cid = peer_.cid,
                      .len = static_cast<std::uint16_t>(body.size()),
                      .tx_time = wire_time(now)};
  std::ranges::copy(body, out.head.begin() + kHeaderBytes);
  seal_packet(key, header, body, out.head);
  out.head_bytes = kHeaderBytes + body.size();
  out.path = path;
  out.flow = paths_.at(path).flow;
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

Time Session::tail_probe_at() const {
  if (tail_probed_ || sent_.in_flight() == 0) {
    return kNever;
  }
  return last_activity_ + LossDetector::tail_probe_delay(paths_);
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
