// What the connecting end says of each connection of a channel, sans I/O.
//
// All integers are little-endian. The bytes come from somebody unknown.
//
//    0 u32 magic, the transport's         20 u64 attempt
//    4 u16 version 1                      28 u32 source, destination, process set, lane
//    6 u16 connections of the channel     44 what the transport adds
//    8 u16 index of this connection
//   10 u16 zero
//   12 u64 world id
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// Connections of a channel, at most.
inline constexpr int kMaxConnections = 16;
inline constexpr std::size_t kChannelHelloBytes = 44;

struct ChannelHello {
  std::uint64_t world_id = 0;
  std::uint64_t attempt = 0;  ///< Grows with every connect() of one transport: tells old from new.
  ChannelId channel;
  std::uint16_t index = 0;        ///< Index of this connection among the channel's.
  std::uint16_t count = 0;        ///< Number of the channel's connections, 1..kMaxConnections.
  std::uint32_t piece_bytes = 0;  ///< Where a transport lets its sender choose; it adds this.
  bool operator==(const ChannelHello&) const = default;
};

/// Appends all but piece_bytes.
void encode_channel_hello(const ChannelHello& hello, std::uint32_t magic, ByteWriter& out);
/// Reads all but piece_bytes. kPeerFailed: that makes no sense.
Result<ChannelHello> decode_channel_hello(ByteReader& in, std::uint32_t magic);

}  // namespace lightcc
