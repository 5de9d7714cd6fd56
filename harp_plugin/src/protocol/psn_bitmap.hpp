// One bit for each packet number of a window, in a ring: which packets arrived, or were
// acknowledged.
//
// The window's size is a power of two and a multiple of 64, so that the bit of a number is found by
// a mask, also where numbers wrap. Whoever owns the bitmap clears what leaves the window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/types.hpp"

namespace harp {

class PsnBitmap {
 public:
  explicit PsnBitmap(std::uint32_t window_packets)
      : mask_(window_packets - 1), words_(window_packets / 64) {}

  bool test(Psn psn) const { return ((words_[word_of(psn)] >> (psn & 63)) & 1) != 0; }
  void set(Psn psn) { words_[word_of(psn)] |= std::uint64_t{1} << (psn & 63); }
  void clear(Psn psn) { words_[word_of(psn)] &= ~(std::uint64_t{1} << (psn & 63)); }

  /// The 64 bits from `first` on; bit i is that of first + i.
  std::uint64_t word_at(Psn first) const {
    const unsigned shift = first & 63;
    const std::uint64_t low = words_[word_of(first)] >> shift;
    if (shift == 0) {
      return low;
    }
    return low | (words_[word_of(first + 63)] << (64 - shift));
  }
  std::uint32_t window_packets() const { return mask_ + 1; }

 private:
  std::size_t word_of(Psn psn) const { return (psn & mask_) / 64; }

  std::uint32_t mask_;
  std::vector<std::uint64_t> words_;
};

}  // namespace harp
