// One end of a handshake (handshake.hpp): when to try again, which answers are genuine, which keys
// follow from them.
//
// The client sends SYNs until a genuine SYNACK comes, and a CONF for each of these; the server
// sends SYNACKs until a packet comes that only the client can have sealed. Sans-I/O, as Session.
#pragma once

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

class HandshakeMachine {
 public:
  /// The client.
  HandshakeMachine(const Secret& secret, const Nonce& nonce, std::uint64_t listen_id, Time now);
  /// The server, which received `syn` at `now`, in a packet sent at `tx_time`.
  HandshakeMachine(
      const Secret& secret, const Nonce& nonce, const Syn& syn, std::uint32_t tx_time, Time now);

  bool is_client() const { return is_client_; }
  Time started() const { return started_; }
  /// The server has keys from the first SYN on, the client from the SYNACK on.
  bool has_keys() const { return has_keys_; }
  const Key& tx_key() const { return is_client_ ? keys_.client_to_server : keys_.server_to_client; }
  const Key& rx_key() const { return is_client_ ? keys_.server_to_client : keys_.client_to_server; }

  Time next_try_at() const { return next_try_at_; }
  /// The next SYN or SYNACK with `offer`, whose packet size comes down where SYNs stay unanswered.
  /// It is sealed with try_key().
  ControlPacket next_try(Offer& offer, Time now);
  Key try_key() const { return is_client_ ? syn_key(secret_) : tx_key(); }

  /// The client's SYN once more, which arrived at `arrival`; nothing where it is not genuine.
  std::optional<Syn> on_syn(const PacketView& packet, Time arrival, Time now);

  enum class Verdict : std::uint8_t { kMalformed, kForged, kRepeated, kNew };
  /// The server's answer, into `syn_ack`. A CONF is due where it is genuine.
  Verdict on_syn_ack(const PacketView& packet, Time arrival, SynAck& syn_ack);

  bool conf_is_due() const { return conf_is_due_; }
  /// Makes the CONF that is due, on one of `paths` paths. False: none is.
  bool take_conf(std::uint16_t pss, std::size_t paths, Time now, ControlPacket& packet);

 private:
  Echo echo(Time now) const;

  bool is_client_;
  bool has_keys_ = false;
  Secret secret_;
  Nonce nonce_;
  Nonce peer_nonce_{};
  std::uint64_t listen_id_ = 0;
  SessionKeys keys_;
  Time started_;
  Time next_try_at_;
  Duration interval_ = std::chrono::milliseconds(20);
  std::uint32_t tries_ = 0;
  std::uint32_t echo_tx_time_ = 0;
  Time echo_arrival_{};
  bool conf_is_due_ = false;
  PathIndex conf_path_ = 0;  ///< The SYNACK's: it changes with every try.
};

}  // namespace harp
