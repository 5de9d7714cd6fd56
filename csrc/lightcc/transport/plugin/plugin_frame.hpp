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
//    0  u8 version 1                        0 channel_hello.hpp's, with the magic "LCN1"
//    1  u64 world id                       44 u32 bytes of a piece
//    9  16 bytes nonce                     48 32 bytes HMAC-SHA256
//   25  u32 bytes of a piece, at most
//   29  varint length, plugin's name
//    .  128 bytes: the plugin's handle
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/transport/channel/channel_hello.hpp"
#include "lightcc/transport/channel/pieces.hpp"
#include "lightcc/transport/transport.hpp"

#include "abi/types.hpp"

namespace lightcc {

/// Bytes of a piece where both plugins take that many.
inline constexpr std::size_t kPieceBytes = (std::size_t{256} << 10) + 64;
inline constexpr std::size_t kPieceAlignment = 64;
static_assert(kPieceBytes % kPieceAlignment == 0);

/// Pieces that are registered at once: sizes are an int up to version 7 of the ABI.
inline constexpr std::size_t kMaxRegisteredPieces = 1024;

inline constexpr std::size_t kPluginHelloBytes = 80;

constexpr Cut piece_cut(std::size_t piece_bytes) {
  return {.piece_bytes = piece_bytes, .ends_short = true};
}

/// What a device whose messages may have `max_bytes` can take of a piece; 0: nothing sensible.
constexpr std::size_t piece_limit(std::size_t max_bytes) {
  return (max_bytes < kPieceBytes ? max_bytes : kPieceBytes) / kPieceAlignment * kPieceAlignment;
}

/// The part of `message` that is registered for the piece at `offset`.
template <typename Byte>
std::span<Byte> registered_part(std::span<Byte> message,
                                std::size_t offset,
                                std::size_t piece_bytes) {
  const std::size_t part = kMaxRegisteredPieces * piece_bytes;
  const std::size_t start = offset / part * part;
  return message.subspan(start, std::min(part, message.size() - start));
}

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

using PluginHelloBytes = std::array<std::byte, kPluginHelloBytes>;

PluginHelloBytes encode_plugin_hello(const ChannelHello& hello,
                                     const std::string& secret,
                                     const ListenNonce& nonce);
/// kPeerFailed: the proof is wrong, or what it proves makes no sense.
Result<ChannelHello> decode_plugin_hello(const PluginHelloBytes& in,
                                         const std::string& secret,
                                         const ListenNonce& nonce);

}  // namespace lightcc
