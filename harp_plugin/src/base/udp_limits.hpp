// What UDP and the kernel's segmentation of it allow: how the pacer cuts bursts, and the datapath
// batches.
#pragma once

#include <cstddef>

namespace harp {

/// One datagram, or all packets of one segmented send, have at most so much behind IPv4 (RFC 768).
inline constexpr std::size_t kMaxUdpPayload = 65507;
/// Packets of one segmented send: UDP_MAX_SEGMENTS of kernels before 6.9.
inline constexpr std::size_t kMaxSegments = 64;

}  // namespace harp
