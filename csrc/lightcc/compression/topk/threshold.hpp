// From which magnitude on elements are selected: found exactly, or predicted from a sample.
//
// Magnitudes are handled as keys, the bits of a lane without its sign: for finite numbers these
// compare as the magnitudes do, and their upper bits are the bins of a logarithmic histogram.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "lightcc/compression/kernels/float_types.hpp"

namespace lightcc::detail {

/// The k-th largest magnitude, and how many of the k have just this one.
struct ExactThreshold {
  std::uint64_t key = 0;
  std::size_t ties = 0;
  bool non_finite = false;  ///< Then the rest means nothing.
  int passes = 0;
};

/// Finds it in two passes: a histogram of the upper bits, then the keys of the bin in which the
/// k-th largest lies, in which nth_element finds it. A bin that holds too much for that (constant
/// tensors, say) is first refined by a histogram of its next bits, at one pass each.
template <typename Lane>
class ExactSearch {
 public:
  using Key = KeyOf<Lane>;

  /// 1 <= k <= numel.
  ExactSearch(std::size_t numel, std::size_t k) : numel_(numel), wanted_(k) {}

  /// `for_each_chunk(f)` calls f(const Lane*, count) for all elements, in pieces, and returns false
  /// when it met one that is not finite.
  template <typename ForEachChunk>
  ExactThreshold run(const ForEachChunk& for_each_chunk) {
    std::size_t population = numel_;
    do {
      if (!count_bins(for_each_chunk)) {
        return {.non_finite = true, .passes = passes_};
      }
      population = descend();
    } while (shift_ > 0 && population > max_candidates());
    if (shift_ > 0) {
      pick_among_candidates(for_each_chunk, population);
    }
    return {.key = prefix_, .ties = wanted_, .passes = passes_};
  }

 private:
  static constexpr unsigned kKeyBits = sizeof(Lane) * 8 - 1;
  // The exponent and 4 bits of the fraction (3 of float64).
  static constexpr unsigned kBinBits = sizeof(Lane) == 4 ? 12 : 14;
  static constexpr std::size_t kBins = std::size_t{1} << kBinBits;

  std::size_t max_candidates() const { return std::max<std::size_t>(65536, numel_ / 16); }

  /// Counts, of the keys that begin with prefix_, which bits come next.
  template <typename ForEachChunk>
  bool count_bins(const ForEachChunk& for_each_chunk) {
    const unsigned bits = std::min(shift_, kBinBits);
    const unsigned below = shift_ - bits;
    bins_.assign(kBins, 0);
    ++passes_;
    const Key prefix = prefix_;
    const Key mask = static_cast<Key>((Key{1} << bits) - 1U);
    const bool is_first = shift_ == kKeyBits;
    const bool finite = for_each_chunk([&](const Lane* lanes, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        const Key key = magnitude_key(lanes[i]);
        // Only the first time all keys begin with the (empty) prefix.
        if (is_first || key >> shift_ == prefix) {
          ++bins_[static_cast<std::size_t>(key >> below & mask)];
        }
      }
    });
    bits_ = bits;
    return finite;
  }

  /// Takes the bin with the wanted_-th largest key into the prefix. Returns what it holds.
  std::size_t descend() {
    std::size_t bin = (std::size_t{1} << bits_) - 1;
    while (wanted_ > bins_[bin]) {
      wanted_ -= bins_[bin];
      --bin;
    }
    prefix_ = static_cast<Key>(prefix_ << bits_ | bin);
    shift_ -= bits_;
    return bins_[bin];
  }

  template <typename ForEachChunk>
  void pick_among_candidates(const ForEachChunk& for_each_chunk, std::size_t population) {
    std::vector<Key> keys(population + 1);
    std::size_t found = 0;
    ++passes_;
    for_each_chunk([&](const Lane* lanes, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        const Key key = magnitude_key(lanes[i]);
        keys[found] = key;  // Kept if the place is taken.
        found += key >> shift_ == prefix_ ? 1U : 0U;
      }
    });
    keys.resize(found);
    const auto nth = keys.begin() + static_cast<std::ptrdiff_t>(wanted_ - 1);
    std::nth_element(keys.begin(), nth, keys.end(), std::greater<>());
    prefix_ = *nth;
    // The larger ones all come before it, among equals.
    wanted_ -= static_cast<std::size_t>(
        std::count_if(keys.begin(), nth, [&](Key key) { return key > prefix_; }));
  }

  std::size_t numel_;
  std::size_t wanted_;  ///< Rank of the k-th largest among the keys that begin with prefix_.
  Key prefix_ = 0;
  unsigned shift_ = kKeyBits;  ///< Bits that are not in the prefix yet.
  unsigned bits_ = 0;
  int passes_ = 0;
  std::vector<std::size_t> bins_;
};

/// A histogram of the magnitudes of some elements, and what it says about all.
class MagnitudeSample {
 public:
  MagnitudeSample() : bins_(kBins, 0) {}

  void restart() {
    std::ranges::fill(bins_, 0U);
    reached_ = 0;
  }
  /// `reached`: the element was selected by this pass's threshold.
  void add(double magnitude, bool reached) {
    // Beyond float32 there is no bin; such magnitudes count as its largest number.
    const auto counted = static_cast<float>(std::min(magnitude, kMax));
    ++bins_[std::bit_cast<std::uint32_t>(counted) >> kShift];
    reached_ += reached ? 1U : 0U;
  }
  /// The magnitude that `k` elements reach, given that `count` reached the threshold. Relating the
  /// sample to that count takes away most of its noise: what is left is that of the elements
  /// between the threshold and the answer. 0: they must take zeros to be so many. Nothing: the
  /// sample has none that was selected.
  std::optional<double> magnitude_reached_by(std::size_t k, std::size_t count) const;

 private:
  // A bin is 8 bits of exponent and 4 of the fraction of a float32.
  static constexpr unsigned kShift = 19;
  static constexpr std::size_t kBins = std::size_t{1} << (31 - kShift);
  static constexpr double kMax = std::numeric_limits<float>::max();

  std::vector<std::uint32_t> bins_;
  std::size_t reached_ = 0;
};

}  // namespace lightcc::detail
