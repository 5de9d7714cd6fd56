// How messages are cut into pieces, which piece comes next, and which ones have come.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// A message is cut at multiples of `piece_bytes`.
struct Cut {
  std::size_t piece_bytes = 0;
  /// The last piece is shorter than all others, so it may be empty. Otherwise only the one piece of
  /// an empty message is.
  bool ends_short = false;

  /// Pieces of a message of `total_bytes`.
  constexpr std::uint64_t count(std::uint64_t total_bytes) const {
    if (total_bytes < piece_bytes) {
      return 1;  // Most are small, and a division takes longer.
    }
    return (ends_short ? total_bytes : total_bytes - 1) / piece_bytes + 1;
  }
  /// Bytes of the piece that begins at `offset`: a multiple of piece_bytes, within the message.
  constexpr std::size_t length(std::uint64_t total_bytes, std::uint64_t offset) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(total_bytes - offset, piece_bytes));
  }
};

/// Goes through the pieces of a channel's messages in order.
class PieceCursor {
 public:
  RequestId message() const { return message_; }
  /// Where the piece begins in its message.
  std::size_t offset() const { return offset_; }

  // hot
  /// On from a piece of a message of `total_bytes`.
  void step(const Cut& cut, std::size_t total_bytes) {
    const std::size_t length = cut.length(total_bytes, offset_);
    offset_ += length;
    if (cut.ends_short ? length < cut.piece_bytes : offset_ == total_bytes) {
      ++message_;
      offset_ = 0;
    }
  }

 private:
  RequestId message_ = 0;
  std::size_t offset_ = 0;
};

/// Which pieces of one message have come. Its size is the receiver's choice, never the peer's.
class PieceSet {
 public:
  PieceSet() = default;
  explicit PieceSet(std::uint64_t count) : count_(count) {
    if (count_ > kWordBits) {
      more_.resize(static_cast<std::size_t>((count_ - 1) / kWordBits));
    }
  }

  // hot
  /// False when the piece was inserted before, or there is no such one.
  bool insert(std::uint64_t index) {
    if (index >= count_) {
      return false;
    }
    const auto word_index = static_cast<std::size_t>(index / kWordBits);
    std::uint64_t& word = word_index == 0 ? first_word_ : more_[word_index - 1];
    const std::uint64_t bit = std::uint64_t{1} << (index % kWordBits);
    const bool is_new = (word & bit) == 0;
    word |= bit;
    return is_new;
  }

 private:
  static constexpr std::uint64_t kWordBits = 64;

  std::uint64_t count_ = 0;
  std::uint64_t first_word_ = 0;     ///< Pieces 0..63: most messages allocate nothing.
  std::vector<std::uint64_t> more_;  ///< Pieces 64 and up.
};

}  // namespace lightcc
