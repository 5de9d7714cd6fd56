// What each round of an operation moves: a chunk of its bytes, or a piece of each member's part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "lightcc/collectives/net_bucket.hpp"

namespace lightcc {

/// Bytes, of which each round moves a chunk.
class MpiChunks {
 public:
  MpiChunks(std::size_t bytes, std::size_t chunk_bytes) : bytes_(bytes), chunk_(chunk_bytes) {}

  std::size_t rounds() const { return (bytes_ + chunk_ - 1) / chunk_; }
  std::size_t start_of(std::size_t round) const { return round * chunk_; }
  std::size_t bytes_of(std::size_t round) const {
    return std::min(chunk_, bytes_ - start_of(round));
  }

 private:
  std::size_t bytes_;
  std::size_t chunk_;
};

/// Elements in one part for each member, of which each round moves a piece.
class MpiParts {
 public:
  /// `round_elements`: about so many of all members together in a round.
  MpiParts(std::vector<std::size_t> counts, std::size_t round_elements)
      : counts_(std::move(counts)),
        piece_(std::max<std::size_t>(round_elements / counts_.size(), 1)) {
    std::size_t start = 0;
    for (const std::size_t count : counts_) {
      starts_.push_back(start);
      start += count;
    }
  }

  std::size_t members() const { return counts_.size(); }

  std::size_t rounds() const { return (*std::ranges::max_element(counts_) + piece_ - 1) / piece_; }

  /// What of a member's part travels in a round.
  ElementRange range(std::size_t round, std::size_t member) const {
    const std::size_t skip = std::min(round * piece_, counts_[member]);
    return {starts_[member] + skip, std::min(piece_, counts_[member] - skip)};
  }

  /// Elements of all members in a round.
  std::size_t count_of(std::size_t round) const {
    std::size_t count = 0;
    for (std::size_t member = 0; member < members(); ++member) {
      count += range(round, member).count;
    }
    return count;
  }

 private:
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> starts_;
  std::size_t piece_;
};

}  // namespace lightcc
