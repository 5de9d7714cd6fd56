// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds every burst error of up to 32 bits in a
// payload. It protects against wires and NICs, not against people: the key is in the header's MAC,
// over which the checksum is folded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace harp {

/// The checksum of `bytes`, by the fastest means that this processor has.
std::uint32_t crc32c(std::span<const std::byte> bytes);

/// The same by table: the reference, and what processors without the instruction get.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

/// A way to compute it.
struct Crc32cKernel {
  const char* name;
  std::uint32_t (*checksum)(std::span<const std::byte> bytes);
};

/// What this processor can do, the fastest first.
std::span<const Crc32cKernel> crc32c_kernels();

/// Whether there is better than the table, which takes several cycles for each byte.
bool crc32c_is_fast();

}  // namespace harp
