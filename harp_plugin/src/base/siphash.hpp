// SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012): a 64-bit keyed
// function that nobody without the 128-bit key can predict. HARP authenticates packets with it and
// derives session keys from it. About 50 cycles for the 36 bytes of a data packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace harp {

using Key = std::array<std::byte, 16>;

/// The function over `first` followed by `second`, as if they were one piece. The length of `first`
/// must be a multiple of 8.
std::uint64_t siphash(const Key& key,
                      std::span<const std::byte> first,
                      std::span<const std::byte> second = {});

}  // namespace harp
