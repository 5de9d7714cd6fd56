// Writes a list block by block, see topk_list.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc::detail {

/// Goes through the blocks in order. The number of entries need not be known before the end:
/// values are put where they end up if the list is full, and moved down at the end if it is not.
class ListWriter {
 public:
  /// `out` has at least max_list_bytes(elements, capacity, format, phase).
  ListWriter(std::span<std::byte> out,
             std::size_t elements,
             std::size_t capacity,
             const TopkFormat& format,
             std::size_t phase);

  /// Entries that still fit.
  std::size_t room() const { return capacity_ - count_; }
  std::size_t count() const { return count_; }
  /// Where the next block's offsets and values go; at most room() of each.
  std::byte* offsets() const { return offsets_ + count_ * sizeof(std::uint16_t); }
  std::byte* values() const { return values_ + count_ * format_.value_bytes(); }
  /// Ends a block of which `count` offsets and values were written.
  void finish_block(std::size_t count, int exponent = 0);
  /// Ends the list, after the last block. Returns its bytes.
  std::size_t finish();
  /// Ends the list, at any time, as one that says that values were not finite. Returns its bytes.
  std::size_t finish_non_finite();
  /// From the beginning again.
  void restart();

 private:
  void write_header(bool non_finite);

  std::span<std::byte> out_;
  std::size_t capacity_;
  TopkFormat format_;
  std::size_t phase_;
  std::size_t num_blocks_;
  std::byte* counts_;
  std::byte* exponents_;
  std::byte* offsets_;
  std::byte* values_;
  std::size_t block_ = 0;
  std::size_t count_ = 0;
};

}  // namespace lightcc::detail
