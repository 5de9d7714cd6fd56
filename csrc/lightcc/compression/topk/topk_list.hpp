// The wire format of the elements that a member sends of its shard: a list of (index, value).
//
// Indices are 16-bit offsets in blocks of 64 Ki elements, with a count for each block: 2 bytes an
// entry and no decoding. Values have the tensor's dtype, or (fp16, for float32 and float64) are
// float16 with a power of two for each block that makes them fit. Byte table:
// docs/inside/wire-format.md.
//
// Lists come from peers: parse_list() checks everything before anything else looks at it.
//
// A list can be of a range of a shard. Its blocks stay those of the shard: `phase` is the place of
// the range's first element in its block. So cutting a list copies slices and changes no entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc {

inline constexpr std::size_t kTopkBlockElems = std::size_t{1} << 16;
inline constexpr std::size_t kTopkHeaderBytes = 16;

/// How values are written. Both ends know it (the operation is agreed on before data moves).
struct TopkFormat {
  DataType dtype = DataType::kFloat32;  ///< Floating point.
  bool fp16 = false;                    ///< Without effect on float16 and bfloat16.
  bool two_bits = false;                ///< Without effect on float16 and float64.

  /// Whether lists travel packed (packed_list.hpp).
  bool packs() const {
    return two_bits && (dtype == DataType::kFloat32 || dtype == DataType::kBfloat16);
  }
  /// What an entry takes between hosts, without what a block or chunk has.
  double entry_bytes() const {
    return packs() ? 1.75 : static_cast<double>(sizeof(std::uint16_t) + value_bytes());
  }
  bool has_scales() const { return fp16 && element_size(dtype) > 2; }
  std::size_t value_bytes() const { return has_scales() ? 2 : element_size(dtype); }
  bool operator==(const TopkFormat&) const = default;
};

/// Blocks that `elements` elements touch when the first is at `phase` (< 64 Ki) in its block.
std::size_t topk_blocks(std::size_t elements, std::size_t phase = 0);

/// The bytes of a list with exactly `count` entries.
std::size_t list_bytes(std::size_t elements,
                       std::size_t count,
                       const TopkFormat& format,
                       std::size_t phase = 0);
/// The bytes that any list of at most `capacity` entries fits into: what to reserve for
/// HostResidual::compress() and for a peer's list.
std::size_t max_list_bytes(std::size_t elements,
                           std::size_t capacity,
                           const TopkFormat& format,
                           std::size_t phase = 0);

/// A list that was checked. Points into the bytes it was parsed from.
struct TopkListView {
  std::size_t elements = 0;  ///< The list is of so many.
  std::size_t phase = 0;     ///< Its first element's place in its block.
  TopkFormat format;
  bool non_finite =
      false;  ///< The sender's values held a NaN or infinity; then there are no entries.
  std::size_t count = 0;  ///< Entries.
  std::size_t num_blocks = 0;
  const std::byte* counts = nullptr;     ///< u32 for each block.
  const std::byte* exponents = nullptr;  ///< i16 for each block, or null without scales.
  const std::byte* offsets = nullptr;    ///< u16 for each entry, ascending in each block.
  const std::byte* values = nullptr;     ///< value_bytes() for each entry.

  LIGHTCC_EXPORT std::size_t block_count(std::size_t block) const;
  /// Values of the block are multiplied by two to this power; 0 without scales.
  int block_exponent(std::size_t block) const;
  std::size_t offset(std::size_t entry) const;
  /// Index in the shard or range of an entry of `block`.
  std::size_t index(std::size_t block, std::size_t entry) const {
    return block * kTopkBlockElems + offset(entry) - phase;
  }
  /// What an entry of `block` stands for, scale included. Exact (float64 holds every value).
  double value(std::size_t block, std::size_t entry) const;
};

/// Checks `bytes`, which must be one whole list of `elements` elements in `format` at `phase`.
/// Errors: kPeerFailed, with what is wrong: another format or phase, a wrong length, counts that do
/// not add up, offsets that do not ascend or are outside the range, values that are not finite,
/// scales out of range, entries in a list that is flagged as not finite.
LIGHTCC_EXPORT Result<TopkListView> parse_list(std::span<const std::byte> bytes,
                                               std::size_t elements,
                                               const TopkFormat& format,
                                               std::size_t phase = 0);

/// The bytes of the part of `list` that lies in its elements [begin, end).
std::size_t list_range_bytes(const TopkListView& list, std::size_t begin, std::size_t end);
/// Writes that part as a list of its own, of end - begin elements at phase (list.phase + begin) mod
/// 64 Ki. Returns its bytes. A flagged list has flagged parts. Errors: kInvalidArgument when
/// [begin, end) is not inside the list or `out` is shorter than list_range_bytes().
Result<std::size_t> write_list_range(const TopkListView& list,
                                     std::size_t begin,
                                     std::size_t end,
                                     std::span<std::byte> out);

}  // namespace lightcc
