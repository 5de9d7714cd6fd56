#include "bench.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "ticks.hpp"

namespace harp_cycles {
namespace {

constexpr double kWarmUp = 0.125;

using Parts = std::array<double, kMaxParts>;

void run_for(Bench& bench, std::uint64_t max_ticks, Tally& tally) {
  const std::uint64_t first = ticks();
  do {
    bench.step(tally);
  } while (ticks() - first < max_ticks);
}

void run(Bench& bench, double ms, const Clock& clock, Figure& figure) {
  const double max_ticks = ms * 1e6 * clock.ticks_per_ns;
  Tally warm_up;
  run_for(bench, static_cast<std::uint64_t>(kWarmUp * max_ticks), warm_up);
  Tally tally;
  const double rate_before = cycles_per_tick();
  run_for(bench, static_cast<std::uint64_t>(max_ticks), tally);
  const double rate = (rate_before + cycles_per_tick()) / 2;
  Parts parts{};
  for (std::size_t part = 0; part < kMaxParts; ++part) {
    const double net = static_cast<double>(tally.part_ticks[part]) -
                       clock.ticks_per_read * static_cast<double>(tally.part_reads[part]);
    parts[part] = net / static_cast<double>(tally.packets) * rate;
  }
  figure.parts.push_back(parts);
  figure.cycle_ns.push_back(1 / (rate * clock.ticks_per_ns));
}

double sum_of(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

std::vector<double> sums_of(const std::vector<Parts>& all) {
  std::vector<double> sums(all.size());
  std::ranges::transform(all, sums.begin(), sum_of);
  return sums;
}

}  // namespace

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double Figure::median_of(std::size_t part) const {
  std::vector<double> values(parts.size());
  std::ranges::transform(parts, values.begin(), [&](const Parts& one) { return one[part]; });
  return median(std::move(values));
}

double Figure::median_sum() const {
  return median(sums_of(parts));
}

double Figure::min_sum() const {
  return std::ranges::min(sums_of(parts));
}

double Figure::max_sum() const {
  return std::ranges::max(sums_of(parts));
}

double median_difference(const Figure& here, std::size_t part, const Figure& there) {
  std::vector<double> values(here.parts.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = here.parts[i][part] - there.parts[i][0];
  }
  return median(std::move(values));
}

std::vector<Figure> measure(std::span<const std::unique_ptr<Bench>> benches,
                            double ms,
                            std::size_t repetitions,
                            const Clock& clock) {
  std::vector<Figure> figures(benches.size());
  for (std::size_t repetition = 0; repetition < repetitions; ++repetition) {
    for (std::size_t i = 0; i < benches.size(); ++i) {
      run(*benches[i], ms, clock, figures[i]);
    }
  }
  return figures;
}

}  // namespace harp_cycles
