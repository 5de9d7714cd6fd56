// How a vector of elements is cut into chunks, and each chunk into one piece per member.
//
// A pure function of arguments that all members share, so that both ends of a channel derive the
// same messages. A piece may be empty; it is then no message.
#pragma once

#include <cstddef>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"

namespace lightcc {

class SharePlan {
 public:
  /// All pieces alike to within 64 bytes, in memory order chunk by chunk, none above `piece_bytes`.
  /// `piece_bytes` is rounded up to a multiple of 64.
  static SharePlan even(std::size_t total_elements,
                        std::size_t element_bytes,
                        std::size_t members,
                        std::size_t piece_bytes);
  /// Member j's share is counts[j] elements after those of the members before it, cut from its
  /// start into pieces of `piece_bytes`, rounded up likewise.
  static SharePlan by_counts(const std::vector<std::size_t>& counts,
                             std::size_t element_bytes,
                             std::size_t piece_bytes);

  std::size_t chunks() const { return chunks_; }
  /// Most bytes of a piece, a multiple of 64.
  std::size_t piece_bytes() const { return piece_bytes_; }
  ElementRange piece(std::size_t chunk, std::size_t member) const;

 private:
  SharePlan(std::size_t element_bytes, std::size_t piece_bytes);

  std::size_t piece_bytes_;
  std::size_t piece_elements_;  ///< In piece_bytes_.
  std::size_t chunks_ = 0;
  // Even shares.
  std::size_t total_ = 0;
  std::size_t members_ = 0;
  std::size_t line_elements_;      ///< In 64 bytes, the unit of cutting.
  std::size_t lines_of_each_ = 0;  ///< In a piece; the first `longer_` of all have one more.
  std::size_t longer_ = 0;
  // Shares by counts; empty for even ones.
  std::vector<std::size_t> starts_;
  std::vector<std::size_t> counts_;
};

}  // namespace lightcc
