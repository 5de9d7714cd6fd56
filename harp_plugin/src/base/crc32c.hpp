// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds every burst error of up to 32 bits in a
// payload. It protects against wires and NICs, not against people: the key is in the header's MAC,
// over which the checksum is folded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace harp {

/// The checksum of `bytes`, by the processor's instruction where it was compiled for one that has
/// it.
std::uint32_t crc32c(std::span<const std::byte> bytes);

/// The same by table: the reference, and what other processors get.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

}  // namespace harp
