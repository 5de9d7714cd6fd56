// What an acknowledgement says: which packets arrived, in what order on each path, and how much
// more may be sent.
//
// All of it is cumulative, a maximum, or of the newest packet, so that acknowledgements may be
// lost, repeated and reordered without harm. There are only as many SACK words as the newest packet
// needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/types.hpp"

namespace harp {

inline constexpr std::size_t kMaxSackWords = kMaxWindowPackets / 64;
inline constexpr std::size_t kMaxAckPaths = 8;
inline constexpr std::size_t kAckFixedBytes = 24;
inline constexpr std::size_t kAckPathBytes = 6;
inline constexpr std::size_t kMaxAckBytes =
    kAckFixedBytes + kMaxAckPaths * kAckPathBytes + kMaxSackWords * 8;

struct AckBody {
  struct PathReport {
    PathIndex path = 0;
    PathSeq newest = 0;      ///< Highest path_seq that arrived on this path.
    bool is_astray = false;  ///< It came to the queue of another engine than the session's.
    bool operator==(const PathReport&) const = default;
  };

  Psn cum_psn = 0;                 ///< Everything before it arrived; it did not.
  MsgSeq msg_limit = 0;            ///< Messages before it have a buffer: no limit on their packets.
  std::uint32_t spurious = 0;      ///< Retransmissions that arrived although the packet was there.
  PathIndex echo_path = kNoPath;   ///< Path of the packet that is echoed; kNoPath: no echo.
  std::uint32_t echo_tx_time = 0;  ///< Its tx_time.
  std::uint32_t echo_delay = 0;    ///< wire_duration() from its arrival to this packet.
  std::uint8_t path_count = 0;
  std::uint8_t sack_words = 0;
  std::array<PathReport, kMaxAckPaths> paths{};
  /// Bit i of word w: cum_psn + 64 w + i arrived.
  std::array<std::uint64_t, kMaxSackWords> sack{};
};

/// Reads a body; nothing where a length or count is wrong.
std::optional<AckBody> parse_ack(std::span<const std::byte> body);

/// Writes a body and returns its length. `out` holds at least kMaxAckBytes.
std::size_t encode_ack(const AckBody& ack, std::span<std::byte> out);

}  // namespace harp
