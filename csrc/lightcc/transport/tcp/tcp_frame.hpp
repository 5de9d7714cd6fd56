// Everything the TCP transport puts on the wire or into a handle, sans I/O.
//
// A message is cut at multiples of kStripeBytes; every stripe travels behind a header that says
// where it belongs, so that the stripes of one message may take any socket of a channel and arrive
// in any order. The cut is fixed by the protocol: a header that describes any other piece is
// refused, which makes "every byte exactly once" a matter of one bit per stripe (PieceSet).
//
// All integers are little-endian. Every decoder is given bytes of unknown origin.
//
//   stripe header (32 bytes)         handle
//    0 u32 magic "LCS1"               0 u8  version 1
//    4 u32 payload bytes              1 u8  4 or 6: IP version
//    8 u64 message number             2 u16 port
//   16 u64 offset in the message      4 u64 world id
//   24 u64 bytes of the message      12 4 or 16 address bytes
//
// The hello is channel_hello.hpp's, with the magic "LCH1", inside the authenticated handshake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/channel/channel_hello.hpp"
#include "lightcc/transport/channel/pieces.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// Payload of every stripe of a message but the last, which may be shorter. A multiple of 64, so
/// that fragments start on cache lines.
/// Smaller stripes cost system calls (128 KiB: about a tenth more processor time for large
/// messages); larger ones fill a core's cache and keep half a megabyte on one socket.
inline constexpr std::size_t kStripeBytes = std::size_t{256} << 10;
inline constexpr std::size_t kStripeHeaderBytes = 32;
inline constexpr std::size_t kFragmentAlignment = 64;
static_assert(kStripeBytes % kFragmentAlignment == 0);

inline constexpr Cut kStripeCut{.piece_bytes = kStripeBytes, .ends_short = false};

/// Bytes of a message on the wire, headers included.
constexpr std::uint64_t message_wire_bytes(std::uint64_t total_bytes) {
  return total_bytes + kStripeCut.count(total_bytes) * kStripeHeaderBytes;
}

struct StripeHeader {
  std::uint64_t message = 0;  ///< Number of the message on its channel.
  std::uint64_t offset = 0;   ///< Where the payload begins in the message.
  std::uint64_t total = 0;    ///< Bytes of the message.
  std::uint32_t length = 0;   ///< Bytes of the payload.
  bool operator==(const StripeHeader&) const = default;
};

using StripeHeaderBytes = std::array<std::byte, kStripeHeaderBytes>;

void encode_stripe_header(const StripeHeader& header, StripeHeaderBytes& out);
/// kPeerFailed unless the header is exactly one stripe of the protocol's cut.
Result<StripeHeader> decode_stripe_header(const StripeHeaderBytes& in);

Bytes encode_tcp_hello(const ChannelHello& hello);
Result<ChannelHello> decode_tcp_hello(std::span<const std::byte> in);

/// Where a TCP transport listens, and in which world.
struct TcpHandle {
  std::uint64_t world_id = 0;
  SocketAddress address;
};

/// kInvalidArgument unless the address is IPv4 or IPv6.
Result<TransportHandle> encode_tcp_handle(const TcpHandle& handle);
Result<TcpHandle> decode_tcp_handle(std::span<const std::byte> in);

}  // namespace lightcc
