// Lists as they travel where values have 2 bits: 1.75 bytes an entry, and 6 a chunk.
//
// Within a chunk of 4,096 elements values have at most two magnitudes, which the step that selected
// them made the means of two classes (topk_step.cpp). So an entry is an offset of 12 bits, a sign,
// and which magnitude it has. Packing loses nothing: who unpacks a list has the list of
// topk_list.hpp again. Byte table: docs/inside/wire-format.md. (Sarfi et al., "SparseLoCo", 2025.)
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc {

inline constexpr std::size_t kTopkChunkElems = 4096;

/// The bytes of the part of `list` that lies in its elements [begin, end), packed.
std::size_t packed_range_bytes(const TopkListView& list, std::size_t begin, std::size_t end);
/// Writes that part to `out`, which has packed_range_bytes(). The list is finite, its format packs,
/// and each chunk has at most two magnitudes, which are bfloat16s.
void pack_range(const TopkListView& list, std::size_t begin, std::size_t end, std::byte* out);

/// The bytes that any packed list of at most `capacity` entries fits into.
std::size_t max_packed_bytes(std::size_t elements, std::size_t capacity, std::size_t phase = 0);

/// The bytes that unpack_list() writes for what begins as a packed list of `elements` elements.
/// Errors: kPeerFailed, with what is wrong: another format or phase, more entries than elements, a
/// length that is not that of its counts.
Result<std::size_t> unpacked_bytes(std::span<const std::byte> packed,
                                   std::size_t elements,
                                   const TopkFormat& format,
                                   std::size_t phase = 0);
/// Writes the list to `out`, which has unpacked_bytes() of the same arguments, without an error.
/// parse_list() then checks offsets and values.
void unpack_list(std::span<const std::byte> packed,
                 std::size_t elements,
                 const TopkFormat& format,
                 std::size_t phase,
                 std::span<std::byte> out);

}  // namespace lightcc
