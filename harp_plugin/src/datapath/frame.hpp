// What datapaths that carry whole Ethernet frames put in front of a packet: Ethernet, IP (RFC 791,
// RFC 8200) and UDP (RFC 768) headers.
//
// IPv4 packets say "do not fragment" and carry no UDP checksum unless a NIC adds it, as RFC 768
// allows: the CRC of the payload and the authenticator of the header say more. Over IPv6 the
// checksum is a must.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "datapath/address.hpp"

namespace harp {

using MacAddress = std::array<std::byte, 6>;

inline constexpr std::size_t kEthernetBytes = 14;
inline constexpr std::size_t kIpv4Bytes = 20;  ///< Without options.

/// Counts all headers together; the family is 4 or 6.
constexpr std::size_t frame_header_bytes(std::uint16_t family) {
  return kEthernetBytes + (family == 4 ? kIpv4Bytes : 40) + 8;
}

/// A frame's way from one host to another.
struct FrameFlow {
  MacAddress source_mac{};
  MacAddress destination_mac{};
  Address source;
  Address destination;  ///< It has the family of `source`.
  /// The NIC completes the UDP checksum, of which the frame has the pseudo header's part.
  bool sum_by_nic = false;
};

/// Writes the headers of a frame whose UDP payload lies at frame[frame_header_bytes(family)..]. A
/// frame has at most 65535 bytes behind its Ethernet header.
void write_frame_headers(const FrameFlow& flow, std::span<std::byte> frame);

/// Refers to the frame's bytes.
struct FrameView {
  std::span<const std::byte> source_ip;  ///< 4 or 16 bytes, in network order.
  std::span<const std::byte> destination_ip;
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = 0;
  std::span<const std::byte> payload;

  Address source() const { return address_of(source_ip, source_port); }
  Address destination() const { return address_of(destination_ip, destination_port); }
};

/// Nothing: no whole UDP packet over IPv4 without options or IPv6 without extension headers, not
/// tagged, not a fragment; or one whose UDP checksum is wrong, unless the NIC has verified it. The
/// padding behind short packets is left out.
std::optional<FrameView> parse_frame(std::span<const std::byte> frame, bool is_verified = false);

}  // namespace harp
