// A bucket seen as one long vector of elements, without copying it: which memory a range of
// elements lies in, and packing and unpacking of the ranges that touch more than one tensor.
//
// Tensors that follow one another in memory count as one, so a flat gradient buffer needs no
// packing. That may differ from member to member.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lightcc/collectives/group.hpp"

namespace lightcc {

/// `count` elements from element `first` of a bucket on.
struct ElementRange {
  std::size_t first = 0;
  std::size_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

/// The blocks in `in`, one after another, as a bucket of which only the own one has an output.
std::vector<TensorSpan> blocks_of(const std::byte* in,
                                  std::byte* out,
                                  const std::vector<std::size_t>& counts,
                                  int own,
                                  std::size_t element_bytes);
/// The blocks of `out`, likewise, of which only the own one has an input.
std::vector<TensorSpan> gathered_blocks(const std::byte* in,
                                        std::byte* out,
                                        const std::vector<std::size_t>& bytes,
                                        int own);
/// Makes bytes of elements.
void count_bytes(std::vector<TensorSpan>& tensors,
                 std::vector<std::size_t>& counts,
                 std::size_t element_bytes);

class BucketView {
 public:
  /// What counts as one tensor: kNothing where all members need the same pieces.
  enum class Joining : std::uint8_t { kNeighbours, kNothing };

  /// `element_bytes`: of every tensor's dtype.
  BucketView(const std::vector<TensorSpan>& tensors,
             std::size_t element_bytes,
             Joining joining = Joining::kNeighbours);

  std::size_t total_elements() const { return total_; }
  std::size_t element_bytes() const { return element_bytes_; }
  /// Whether some range may need packing: more than one piece of memory, or a null input or output.
  bool scattered() const;

  /// The input of `range` where it is one piece of memory, else null.
  const std::byte* contiguous_in(ElementRange range) const;
  /// The same for the output.
  std::byte* contiguous_out(ElementRange range) const;
  /// Copies the input of `range` (zeros where it is null) to `into`.
  void pack(ElementRange range, std::byte* into) const;
  /// Copies `bytes`, which start `skip_bytes` into `range`, to the output where it is wanted.
  void unpack(ElementRange range, std::size_t skip_bytes, std::span<const std::byte> bytes) const;

  /// Calls `visit(const TensorSpan& piece, std::size_t offset)` for each piece of memory of
  /// `range`, in order; `offset` is in elements from the start of the range.
  template <typename Visit>
  void for_each_piece(ElementRange range, Visit visit) const {
    std::size_t offset = 0;
    for (std::size_t i = find(range.first); offset < range.count; ++i) {
      const std::size_t skip = range.first + offset - starts_[i];
      TensorSpan piece = spans_[i];
      piece.count = std::min(piece.count - skip, range.count - offset);
      if (piece.in != nullptr) {
        piece.in += skip * element_bytes_;
      }
      if (piece.out != nullptr) {
        piece.out += skip * element_bytes_;
      }
      visit(static_cast<const TensorSpan&>(piece), offset);
      offset += piece.count;
    }
  }

 private:
  /// Index of the span that holds `element`.
  std::size_t find(std::size_t element) const;
  template <typename Pointer>
  Pointer contiguous(Pointer TensorSpan::* side, ElementRange range) const;

  std::vector<TensorSpan> spans_;    ///< None empty.
  std::vector<std::size_t> starts_;  ///< First element of each span.
  std::size_t total_ = 0;
  std::size_t element_bytes_;
};

}  // namespace lightcc
