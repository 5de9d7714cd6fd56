// Words that all parts of the protocol share: numbers on the wire, limits, and how a session ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.hpp"

namespace harp {

using Cid = std::uint32_t;  ///< Names a session to its owner; chosen by the receiver of packets.
using Psn = std::uint32_t;  ///< Packet number of a session and direction; wraps.
using PathSeq = std::uint32_t;  ///< Counts transmissions on one path; wraps.
using MsgSeq = std::uint32_t;   ///< Number of a message of a session and direction; wraps.
using PathIndex = std::uint16_t;
/// What the network hashes as one: an end's local port, as Route numbers it, and the peer's
/// address.
using FlowIndex = std::uint16_t;

inline constexpr std::size_t kMaxPaths = 64;
inline constexpr PathIndex kNoPath = 0xffff;
inline constexpr std::uint32_t kMaxWindowPackets = 4096;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
/// Payloads are multiples of a cache line, so that elements never straddle packets.
inline constexpr std::size_t kPssUnit = 64;
inline constexpr std::size_t kMaxPss = 65472;

/// Why a session, or one of its messages, did not succeed. The values travel in RST packets.
enum class SessionError : std::uint16_t {
  kNone = 0,
  kPeerTimeout = 1,        ///< Nothing was heard from the peer's housekeeping for too long.
  kNoProgress = 2,         ///< The peer answers, but data does not get through.
  kConnectTimeout = 3,     ///< The handshake did not complete in time.
  kMessageTooLong = 4,     ///< A message is larger than the receive that was posted for it.
  kPeerClosed = 5,         ///< The peer closed before it took or sent this.
  kCancelled = 6,          ///< This end closed or cancelled.
  kProtocolViolation = 7,  ///< An authenticated packet contradicts earlier ones.
};

/// What is known of an arriving packet besides its bytes.
struct Reception {
  bool is_astray = false;  ///< It came to another engine's queue.
  Duration waited{};       ///< It lay on this host before anybody looked.
};

/// Text of `error` for messages and logs.
const char* session_error_name(SessionError error);

/// The sender's clock as packets carry it: units of 256 ns; wraps after 18 minutes.
constexpr std::uint32_t wire_time(Time time) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(time.time_since_epoch().count()) >>
                                    8);
}
constexpr std::uint32_t wire_duration(Duration duration) {
  const auto units = static_cast<std::uint64_t>(duration.count()) >> 8;
  return units > 0xffffffff ? 0xffffffff : static_cast<std::uint32_t>(units);
}
constexpr Duration from_wire_duration(std::uint32_t units) {
  return Duration(static_cast<std::int64_t>(units) << 8);
}

}  // namespace harp
