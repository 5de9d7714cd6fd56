// Packets of somebody who has seen others, and knows no secret.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.hpp"
#include "datapath/packets.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

inline PacketBytes joined(std::span<const std::byte> head, std::span<const std::byte> payload) {
  PacketBytes packet(head.begin(), head.end());
  packet.insert(packet.end(), payload.begin(), payload.end());
  return packet;
}

inline PacketBytes random_packet(Rng& rng, std::size_t max_bytes) {
  return pattern(rng.below(max_bytes + 1), rng());
}

/// A well-formed packet with a MAC that is a guess.
inline PacketBytes forged_packet(PacketType type, Cid cid, Rng& rng, std::size_t body_bytes) {
  PacketBytes packet(kHeaderBytes);
  encode_header({.type = type,
                 .flags = static_cast<std::uint8_t>(rng.below(flag::kKnown + 1)),
                 .path = static_cast<PathIndex>(rng.below(kMaxPaths)),
                 .dst_cid = cid,
                 .psn = static_cast<Psn>(rng()),
                 .path_seq = static_cast<PathSeq>(rng()),
                 .msg_seq = static_cast<MsgSeq>(rng()),
                 .msg_off = 0,
                 .len = static_cast<std::uint16_t>(body_bytes),
                 .tag = 0,
                 .tx_time = static_cast<std::uint32_t>(rng()),
                 .auth = rng()},
                packet);
  const PacketBytes body = pattern(body_bytes, rng());
  packet.insert(packet.end(), body.begin(), body.end());
  return packet;
}

inline PacketBytes any_forged_packet(Cid cid, Rng& rng) {
  const auto type =
      static_cast<PacketType>(rng.between(static_cast<std::uint64_t>(PacketType::kData),
                                          static_cast<std::uint64_t>(PacketType::kHeartbeat)));
  return forged_packet(type, cid, rng, rng.below(200));
}

/// A copy of `packet` with another bit somewhere, another length, or for another session.
inline PacketBytes mutated(PacketBytes packet, Rng& rng) {
  constexpr std::size_t kCidAt = 4;
  switch (rng.below(4)) {
    case 0:
      packet.resize(rng.below(packet.size()));
      break;
    case 1:
      packet.resize(packet.size() + rng.between(1, 20));
      break;
    case 2:
      packet[kCidAt + rng.below(4)] ^= static_cast<std::byte>(rng.between(1, 255));
      break;
    default:
      packet[rng.below(packet.size())] ^= static_cast<std::byte>(1U << rng.below(8));
      break;
  }
  return packet;
}

}  // namespace harp
