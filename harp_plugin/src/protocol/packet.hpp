// The 40 bytes that every HARP packet begins with, and where its body lies.
//
// parse_packet() is the only function that looks at a packet of unknown origin. It checks lengths
// and enumerations, nothing that needs a session; what it returns is a view into the caller's
// bytes. The byte table is docs/harp/wire-format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "protocol/types.hpp"

namespace harp {

inline constexpr std::size_t kHeaderBytes = 40;
/// What IPv4 and UDP put before it.
inline constexpr std::size_t kIpUdpBytes = 28;
inline constexpr std::size_t kAuthenticatedHeaderBytes = 32;
inline constexpr std::uint8_t kWireVersion = 1;

enum class PacketType : std::uint8_t {
  kData = 1,
  kAck = 2,
  kSyn = 3,
  kSynAck = 4,
  kConf = 5,
  kFin = 6,
  kRst = 7,
  kProbe = 8,
  kProbeAck = 9,
  kHeartbeat = 10,
};

namespace flag {
inline constexpr std::uint8_t kLast = 1;    ///< Last packet of its message.
inline constexpr std::uint8_t kAckReq = 2;  ///< Answer at once.
inline constexpr std::uint8_t kRetx = 4;    ///< This psn was sent before.
inline constexpr std::uint8_t kSolo = 8;    ///< The message is this one packet.
inline constexpr std::uint8_t kCrc = 16;    ///< The MAC covers a CRC-32C of the payload.
inline constexpr std::uint8_t kKnown = 31;  ///< All of the above; others must be zero.
}  // namespace flag

struct Header {
  PacketType type = PacketType::kData;
  std::uint8_t flags = 0;
  PathIndex path = 0;         ///< Sender's path.
  Cid dst_cid = 0;            ///< 0 in a SYN, else chosen by the receiver.
  Psn psn = 0;                ///< DATA and FIN; a retransmission keeps it.
  PathSeq path_seq = 0;       ///< DATA and FIN; new with every transmission.
  MsgSeq msg_seq = 0;         ///< DATA; in a FIN the number of the message that will not come.
  std::uint32_t msg_off = 0;  ///< Bytes; a multiple of the session's PSS.
  std::uint16_t len = 0;      ///< Bytes of body, without padding.
  std::uint16_t tag = 0;      ///< The application's, the same in all packets of a message.
  std::uint32_t tx_time = 0;  ///< wire_time() of the transmission; echoed.
  std::uint64_t auth = 0;     ///< The MAC; see auth.hpp.
};

struct PacketView {
  Header header;
  std::span<const std::byte> covered;  ///< The header bytes under the MAC.
  std::span<const std::byte> body;     ///< header.len bytes.
};

/// The view of `packet`, or nothing where it is not a HARP packet of this version. What follows the
/// body is padding, which nobody looks at.
std::optional<PacketView> parse_packet(std::span<const std::byte> packet);

/// The session that `packet` says it is for, 0 for none yet (a SYN); nothing where it is shorter
/// than a header. A hint that chooses who looks at the packet, nothing more.
inline std::optional<Cid> peek_cid(std::span<const std::byte> packet) {  // hot
  constexpr std::size_t kCidAt = 4;
  if (packet.size() < kHeaderBytes) {
    return std::nullopt;
  }
  return ByteReader(packet.subspan(kCidAt)).number<Cid>();
}

/// Writes `header` with its `auth` as it is. `out` holds at least kHeaderBytes.
inline void encode_header(const Header& header, std::span<std::byte> out) {  // hot
  const auto word = [](std::uint32_t low, std::uint32_t high) {
    return low | (std::uint64_t{high} << 32U);
  };
  const auto half = [](std::uint32_t low, std::uint32_t high) { return low | (high << 16U); };
  const auto first = static_cast<std::uint32_t>(kWireVersion << 4) |
                     static_cast<std::uint32_t>(header.type) | (std::uint32_t{header.flags} << 8U);
  // In whole words, as siphash() reads them: a load that covers several younger stores waits until
  // they have left the core, and with them the payload of the packet before.
  ByteWriter writer(out);
  writer.number(word(half(first, header.path), header.dst_cid));
  writer.number(word(header.psn, header.path_seq));
  writer.number(word(header.msg_seq, header.msg_off));
  writer.number(word(half(header.len, header.tag), header.tx_time));
  writer.number(header.auth);
}

}  // namespace harp
