// Everything the TCP transport puts on the wire or into a handle, sans I/O.
//
// A message is cut at multiples of kStripeBytes; every stripe travels behind a header that says
// where it belongs, so that the stripes of one message may take any socket of a channel and arrive
// in any order. The cut is fixed by the protocol: a header that describes any other piece is
// refused, which makes "every byte exactly once" a matter of one bit per stripe.
//
// All integers are little-endian. Every decoder is given bytes of unknown origin.
//
//   stripe header (32 bytes)         hello (44 bytes)                    handle
//    0 u32 magic "LCS1"               0 u32 magic "LCH1"                  0 u8  version 1
//    4 u32 payload bytes              4 u16 version 1                     1 u8  4 or 6: IP version
//    8 u64 message number             6 u16 sockets of the channel        2 u16 port
//   16 u64 offset in the message      8 u16 index of this socket          4 u64 world id
//   24 u64 bytes of the message      10 u16 zero                         12 4 or 16 address bytes
//                                    12 u64 world id
//                                    20 u64 attempt
//                                    28 u32 source, destination, process set, lane
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/socket_address.hpp"
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

inline constexpr int kMaxTcpConnections = 16;

/// Stripes of a message of `total_bytes`; an empty message is one empty stripe.
constexpr std::uint64_t stripe_count(std::uint64_t total_bytes) {
  return total_bytes == 0 ? 1 : (total_bytes - 1) / kStripeBytes + 1;
}

/// Bytes of a message on the wire, headers included.
constexpr std::uint64_t message_wire_bytes(std::uint64_t total_bytes) {
  return total_bytes + stripe_count(total_bytes) * kStripeHeaderBytes;
}

/// Payload of the stripe that starts at `offset` (a multiple of kStripeBytes, within the message).
constexpr std::uint32_t stripe_length(std::uint64_t total_bytes, std::uint64_t offset) {
  const std::uint64_t rest = total_bytes - offset;
  return static_cast<std::uint32_t>(rest < kStripeBytes ? rest : kStripeBytes);
}

struct StripeHeader {
  std::uint64_t message = 0;  ///< Number of the message on its channel.
  std::uint64_t offset = 0;   ///< Of the payload in the message.
  std::uint64_t total = 0;    ///< Bytes of the message.
  std::uint32_t length = 0;   ///< Bytes of the payload.
  bool operator==(const StripeHeader&) const = default;
};

using StripeHeaderBytes = std::array<std::byte, kStripeHeaderBytes>;

void encode_stripe_header(const StripeHeader& header, StripeHeaderBytes& out);
/// kPeerFailed unless the header is exactly one stripe of the protocol's cut.
Result<StripeHeader> decode_stripe_header(const StripeHeaderBytes& in);

/// Which stripes of one message have been seen. Bounded by the receiver's own length, never the
/// peer's.
class StripeSet {
 public:
  explicit StripeSet(std::uint64_t total_bytes);
  /// False when the stripe at `offset` was inserted before or lies beyond the message.
  bool insert(std::uint64_t offset);

 private:
  std::uint64_t count_;
  std::uint64_t first_word_ = 0;     ///< Stripes 0..63: most messages allocate nothing.
  std::vector<std::uint64_t> more_;  ///< Stripes 64 and up.
};

/// What the connecting end says of a socket, inside the authenticated handshake.
struct TcpHello {
  std::uint64_t world_id = 0;
  std::uint64_t attempt = 0;  ///< Grows with every connect() of one transport: tells old from new.
  ChannelId channel;
  std::uint16_t socket_index = 0;
  std::uint16_t socket_count = 0;  ///< 1..kMaxTcpConnections.
  bool operator==(const TcpHello&) const = default;
};

Bytes encode_tcp_hello(const TcpHello& hello);
Result<TcpHello> decode_tcp_hello(std::span<const std::byte> in);

/// Where a TCP transport listens, and in which world.
struct TcpHandle {
  std::uint64_t world_id = 0;
  SocketAddress address;
};

/// kInvalidArgument unless the address is IPv4 or IPv6.
Result<TransportHandle> encode_tcp_handle(const TcpHandle& handle);
Result<TcpHandle> decode_tcp_handle(std::span<const std::byte> in);

}  // namespace lightcc
