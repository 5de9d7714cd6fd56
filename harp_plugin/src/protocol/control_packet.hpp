// A packet without a message: what it says, before it is sealed and sent.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "protocol/ack_body.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): filled as far as body_bytes says.
struct ControlPacket {
  PacketType type = PacketType::kAck;
  PathIndex path = 0;
  std::size_t body_bytes = 0;
  std::array<std::byte, kMaxAckBytes> buffer;

  std::span<const std::byte> body() const { return std::span(buffer).first(body_bytes); }
};

}  // namespace harp
