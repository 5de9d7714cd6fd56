// What the plugin transport says to its peer: handles, hellos, and the cut of messages.
//
// A plugin carries messages with their lengths, in order. A message of ours is cut into pieces of C
// bytes and a last one of fewer, which may be empty; so every message ends with a piece shorter
// than C, and a receiver that expects another length finds a piece of the wrong size, whatever the
// lengths are. C is a multiple of 64 bytes, so that fragments start on cache lines, and a little
// more than a power of two, so that messages of such sizes need no empty piece. Pieces go round the
// connections of a channel.
//
// The first message of each connection is its hello, with an HMAC of the job's secret over a nonce
// that the listening transport chose; handles travel through the rendezvous, which is authenticated
// itself. A hello that was heard before is refused by its attempt. Nothing of a connection is
// parsed before the proof. (HARP's handles are capabilities, too; a plugin over plain sockets needs
// this one.)
//
// All integers are little-endian. Every decoder is given bytes of unknown origin.
//
//   handle (at most 190 bytes)             hello (80 bytes)
//    0  u8 version 1                        0 u32 magic "LCN1"
//    1  u64 world id                        4 u16 version 1
//    9  16 bytes nonce                      6 u16 connections of the channel
//   25  u32 bytes of a piece, at most       8 u16 index of this connection
//   29  varint length, plugin's name       10 u16 zero
//    .  128 bytes: the plugin's handle     12 u64 world id
//                                          20 u64 attempt
//                                          28 u32 source, destination, process set, lane
//                                          44 u32 bytes of a piece
//                                          48 32 bytes HMAC-SHA256
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/transport/transport.hpp"

#include "abi/types.hpp"

namespace lightcc {

/// Bytes of a piece where both plugins take that many.
inline constexpr std::size_t kPieceBytes = (std::size_t{256} << 10) + 64;
inline constexpr std::size_t kPieceAlignment = 64;
static_assert(kPieceBytes % kPieceAlignment == 0);

/// Pieces that are registered at once: sizes are an int up to version 7 of the ABI.
inline constexpr std::size_t kMaxRegisteredPieces = 1024;

inline constexpr int kMaxPluginConnections = 16;
inline constexpr std::size_t kPluginHelloBytes = 80;

/// Pieces of a message of `total_bytes`.
constexpr std::uint64_t piece_count(std::uint64_t total_bytes, std::size_t piece_bytes) {
  return total_bytes / piece_bytes + 1;
}

/// What a device whose messages may have `max_bytes` can take of a piece; 0: nothing sensible.
constexpr std::size_t piece_limit(std::size_t max_bytes) {
  return (max_bytes < kPieceBytes ? max_bytes : kPieceBytes) / kPieceAlignment * kPieceAlignment;
}

/// The piece of `message` that begins at `offset`, and the part around it that is registered.
struct PieceOfMessage {
  PieceOfMessage(std::span<std::byte> message, std::size_t offset, std::size_t piece_bytes)
      : bytes(message.subspan(offset, std::min(piece_bytes, message.size() - offset))) {
    const std::size_t block = kMaxRegisteredPieces * piece_bytes;
    const std::size_t start = offset / block * block;
    registered = message.subspan(start, std::min(block, message.size() - start));
  }
  bool is_last(std::size_t piece_bytes) const { return bytes.size() < piece_bytes; }

  std::span<std::byte> bytes;
  std::span<std::byte> registered;
};

using ListenNonce = std::array<std::byte, 16>;
using NcclHandle = std::array<std::byte, harp::abi::kHandleBytes>;

struct PluginHandle {
  std::uint64_t world_id = 0;
  ListenNonce nonce{};
  std::uint32_t piece_bytes = 0;  ///< Most that the listener takes.
  std::string plugin;             ///< Its name; at most 32 bytes.
  NcclHandle handle{};
};

TransportHandle encode_plugin_handle(const PluginHandle& handle);
/// kInvalidArgument: not such a handle.
Result<PluginHandle> decode_plugin_handle(std::span<const std::byte> in);

/// What the connecting end says of a connection.
struct PluginHello {
  std::uint64_t world_id = 0;
  std::uint64_t attempt = 0;  ///< Grows with every connect() of one transport: tells old from new.
  ChannelId channel;
  std::uint16_t index = 0;
  std::uint16_t count = 0;  ///< Of the channel's connections, 1..kMaxPluginConnections.
  std::uint32_t piece_bytes = 0;
  bool operator==(const PluginHello&) const = default;
};

using PluginHelloBytes = std::array<std::byte, kPluginHelloBytes>;

PluginHelloBytes encode_plugin_hello(const PluginHello& hello,
                                     const std::string& secret,
                                     const ListenNonce& nonce);
/// kPeerFailed: the proof is wrong, or what it proves makes no sense.
Result<PluginHello> decode_plugin_hello(const PluginHelloBytes& in,
                                        const std::string& secret,
                                        const ListenNonce& nonce);

}  // namespace lightcc
