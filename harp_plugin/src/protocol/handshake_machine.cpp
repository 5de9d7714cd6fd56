#include "protocol/handshake_machine.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.hpp"
#include "protocol/auth.hpp"
#include "protocol/control_packet.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

constexpr std::uint32_t kTriesPerPss = 2;
constexpr Duration kMaxInterval = std::chrono::seconds(1);

}  // namespace

HandshakeMachine::HandshakeMachine(const Secret& secret,
                                   const Nonce& nonce,
                                   std::uint64_t listen_id,
                                   Time now)
    : is_client_(true),
      secret_(secret),
      nonce_(nonce),
      listen_id_(listen_id),
      started_(now),
      next_try_at_(now) {}

HandshakeMachine::HandshakeMachine(
    const Secret& secret, const Nonce& nonce, const Syn& syn, std::uint32_t tx_time, Time now)
    : is_client_(false),
      has_keys_(true),
      secret_(secret),
      nonce_(nonce),
      peer_nonce_(syn.nonce),
      keys_(derive_session_keys(secret, syn.nonce, nonce)),
      started_(now),
      next_try_at_(now),
      echo_tx_time_(tx_time),
      echo_arrival_(now) {}

Echo HandshakeMachine::echo(Time now) const {
  return {.tx_time = echo_tx_time_, .delay = wire_duration(now - echo_arrival_)};
}

ControlPacket HandshakeMachine::next_try(Offer& offer, Time now) {
  if (is_client_ && tries_ > 0 && tries_ % kTriesPerPss == 0) {
    offer.pss = pss_ladder_next(offer.pss);
  }
  ControlPacket packet;
  packet.type = is_client_ ? PacketType::kSyn : PacketType::kSynAck;
  packet.path = static_cast<PathIndex>(tries_ % offer.paths);
  packet.body_bytes =
      is_client_
          ? encode_syn({.listen_id = listen_id_, .nonce = nonce_, .offer = offer}, packet.buffer)
          : encode_syn_ack({.nonce = nonce_, .offer = offer, .echo = echo(now)}, packet.buffer);
  ++tries_;
  next_try_at_ = now + interval_;
  interval_ = std::min(2 * interval_, kMaxInterval);
  return packet;
}

std::optional<Syn> HandshakeMachine::on_syn(const PacketView& packet, Time arrival, Time now) {
  auto syn = is_authentic(syn_key(secret_), packet) ? parse_syn(packet.body) : std::nullopt;
  if (!syn || syn->nonce != peer_nonce_) {
    return std::nullopt;
  }
  echo_tx_time_ = packet.header.tx_time;
  echo_arrival_ = arrival;
  next_try_at_ = now;
  return syn;
}

HandshakeMachine::Verdict HandshakeMachine::on_syn_ack(const PacketView& packet,
                                                       Time arrival,
                                                       SynAck& syn_ack) {
  const auto parsed = is_client_ ? parse_syn_ack(packet.body) : std::nullopt;
  if (!parsed || (has_keys_ && parsed->nonce != peer_nonce_)) {
    return Verdict::kMalformed;
  }
  const SessionKeys keys = derive_session_keys(secret_, nonce_, parsed->nonce);
  if (!is_authentic(keys.server_to_client, packet)) {
    return Verdict::kForged;
  }
  echo_tx_time_ = packet.header.tx_time;
  echo_arrival_ = arrival;
  conf_is_due_ = true;  // Also when it is a repetition: the first CONF was lost.
  conf_path_ = packet.header.path;
  if (has_keys_) {
    return Verdict::kRepeated;
  }
  has_keys_ = true;
  keys_ = keys;
  peer_nonce_ = parsed->nonce;
  syn_ack = *parsed;
  return Verdict::kNew;
}

bool HandshakeMachine::take_conf(std::uint16_t pss,
                                 std::size_t paths,
                                 Time now,
                                 ControlPacket& packet) {
  if (!conf_is_due_) {
    return false;
  }
  conf_is_due_ = false;
  packet.type = PacketType::kConf;
  packet.path = static_cast<PathIndex>(conf_path_ % paths);
  packet.body_bytes = encode_conf({.echo = echo(now), .pss = pss}, packet.buffer);
  return true;
}

}  // namespace harp
