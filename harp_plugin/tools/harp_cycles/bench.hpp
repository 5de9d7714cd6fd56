// A loop that is measured, in steps; and the list of those that are measured by turns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ticks.hpp"

namespace harp_cycles {

inline constexpr std::size_t kMaxParts = 4;

/// Ticks of up to four parts of a loop, and the packets that it moved.
struct Tally {
  std::uint64_t packets = 0;
  std::array<std::uint64_t, kMaxParts> part_ticks{};
  std::array<std::uint64_t, kMaxParts> part_reads{};

  /// `work` belongs to `part`.
  template <typename Work>
  void time(std::size_t part, const Work& work) {
    const std::uint64_t first = ticks();
    work();
    part_ticks[part] += ticks() - first;
    ++part_reads[part];
  }
};

class Bench {
 public:
  Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  virtual ~Bench() = default;

  /// Some packets. Throws std::runtime_error where one of them did not do what it should.
  virtual void step(Tally& tally) = 0;
  /// What was compared with what it should be, so far.
  virtual std::uint64_t checked() const = 0;
};

/// Cycles per packet by part, one element for each repetition.
struct Figure {
  std::vector<std::array<double, kMaxParts>> parts;
  std::vector<double> cycle_ns;

  double median_of(std::size_t part) const;
  /// Of all parts together.
  double median_sum() const;
  double min_sum() const;
  double max_sum() const;
};

double median(std::vector<double> values);

/// What `part` takes longer here than part 0 there. Both were measured right after one another in
/// each repetition, so it is the median of the differences, which what the machine does beside it
/// moves less than the difference of the medians.
double median_difference(const Figure& here, std::size_t part, const Figure& there);

/// Runs every bench for `ms`, one after another, `repetitions` times, so that what the machine does
/// beside it hits all of them alike. Before each, an eighth of that to warm up.
std::vector<Figure> measure(std::span<const std::unique_ptr<Bench>> benches,
                            double ms,
                            std::size_t repetitions,
                            const Clock& clock);

/// `is_right` or an error.
inline void require(bool is_right, const char* what) {
  if (!is_right) {
    throw std::runtime_error(std::string("measured what it should not: ") + what);
  }
}

}  // namespace harp_cycles
