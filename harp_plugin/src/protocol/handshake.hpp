// What the two ends tell each other before data flows, and the small bodies of other control
// packets.
//
//   client                                    server
//     SYN (offer, nonce; sealed with the secret)  -->   keeps nothing unless the seal is right
//     <--  SYNACK (offer, nonce; sealed with the session key)
//     CONF (sealed with the session key)  -->           now the server has seen a live client
//
// SYN and SYNACK are padded to the packet size that they propose, so an answer proves that the path
// carries packets of that size; a client that hears nothing proposes less (pss_ladder_next).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/auth.hpp"
#include "protocol/types.hpp"

namespace harp {

inline constexpr std::size_t kOfferBytes = 28;
inline constexpr std::size_t kSynBytes = 8 + 16 + kOfferBytes;
inline constexpr std::size_t kSynAckBytes = 16 + kOfferBytes + 8;
inline constexpr std::size_t kResetBytes = 8;

/// One end's terms. The session uses the smaller of both where both have a limit on the same thing.
struct Offer {
  Cid cid = 0;          ///< How the other end addresses this one.
  Psn initial_psn = 0;  ///< This end's first packet will have it.
  MsgSeq initial_msg = 0;
  std::uint32_t window_packets = 0;  ///< Power of two; packets in flight, both directions.
  std::uint16_t pss = 0;             ///< Payload bytes per packet; a multiple of kPssUnit.
  std::uint16_t paths = 0;
  std::uint32_t eager_packets = 0;  ///< Packets that this end holds of messages without a buffer.
  std::uint32_t buffer_bytes = 0;   ///< SessionConfig::buffer_bytes of this end.
  bool operator==(const Offer&) const = default;
};

struct Syn {
  std::uint64_t listen_id = 0;
  Nonce nonce{};
  Offer offer;
};

struct Echo {
  std::uint32_t tx_time = 0;
  std::uint32_t delay = 0;  ///< wire_duration(); 0xffffffff: nothing is echoed.
};
inline constexpr std::uint32_t kNoEcho = 0xffffffff;

struct SynAck {
  Nonce nonce{};
  Offer offer;
  Echo echo;
};

/// The client's last word: which of the proposed packet sizes the session uses.
struct Conf {
  Echo echo;
  std::uint16_t pss = 0;
};

std::optional<Syn> parse_syn(std::span<const std::byte> body);
std::optional<SynAck> parse_syn_ack(std::span<const std::byte> body);
std::optional<Conf> parse_conf(std::span<const std::byte> body);
/// Body of PROBE_ACK.
std::optional<Echo> parse_echo(std::span<const std::byte> body);
std::optional<SessionError> parse_reset(std::span<const std::byte> body);

std::size_t encode_syn(const Syn& syn, std::span<std::byte> out);
std::size_t encode_syn_ack(const SynAck& syn_ack, std::span<std::byte> out);
std::size_t encode_conf(const Conf& conf, std::span<std::byte> out);
std::size_t encode_echo(const Echo& echo, std::span<std::byte> out);
std::size_t encode_reset(SessionError reason, std::span<std::byte> out);

/// The largest PSS that fits a path MTU over IPv4 and UDP, or 0 where none does.
std::uint16_t pss_for_mtu(std::size_t mtu_bytes);
/// The next smaller PSS that is worth proposing; `pss` itself at the end of the ladder.
std::uint16_t pss_ladder_next(std::uint16_t pss);

}  // namespace harp
