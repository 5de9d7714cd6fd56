#include "lightcc/compression/residual/step_energy.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/float_types.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kRunElems = 64;
constexpr std::size_t kRuns = 32;  // A sample has up to twice as many.
/// Odd, so that steps times this, modulo a power of two, come to every number, far from each other.
constexpr std::uint64_t kScatter = 0x9e3779b97f4a7c15;

/// About so many steps count in means.
constexpr std::uint64_t kRecentSteps = 100;

template <typename Wire, typename Decode>
double sum_of_squares(const std::byte* from, std::size_t count, const Decode& decode) {
  std::array<double, 8> sums{};  // One would wait for each addition.
  for (std::size_t i = 0; i < count; ++i) {
    const double value = decode(detail::load_as<Wire>(from + i * sizeof(Wire)));
    sums[i % sums.size()] += value * value;
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <typename Type>
[[gnu::noinline]] StepEnergy measure(const std::byte* shard,
                                     const std::byte* residual,
                                     std::size_t numel,
                                     std::uint64_t step) {
  using Lane = Type::Lane;
  using Wire = Type::Wire;
  const std::size_t stride = std::max<std::size_t>(std::bit_floor(numel / kRunElems / kRuns), 1);
  StepEnergy sums;
  std::size_t sampled = 0;
  for (std::size_t first = step * kScatter % stride * kRunElems; first < numel;
       first += stride * kRunElems) {
    const std::size_t count = std::min(kRunElems, numel - first);
    sampled += count;
    sums.kept += sum_of_squares<Lane>(
        residual + first * sizeof(Lane), count, [](Lane lane) { return lane; });
    if (shard != nullptr) {
      sums.input += sum_of_squares<Wire>(
          shard + first * sizeof(Wire), count, [](Wire wire) { return Type::decode(wire); });
    }
  }
  const double share =
      static_cast<double>(numel) / static_cast<double>(std::max<std::size_t>(sampled, 1));
  return {.input = sums.input * share, .kept = sums.kept * share};
}

}  // namespace

StepEnergy measure_energy(DataType dtype,
                          const std::byte* shard,
                          const std::byte* residual,
                          std::size_t numel,
                          std::uint64_t step) {
  const IeeeFloatMode mode;
  return detail::with_float_type(
      dtype, [&](auto type) { return measure<decltype(type)>(shard, residual, numel, step); });
}

void CompressionUsage::add(const StepEnergy& one) {
  if (!std::isfinite(one.input) || !std::isfinite(one.kept)) {
    return;  // Squares of float64 may be too large.
  }
  const double share = 1.0 / static_cast<double>(std::min(++measured, kRecentSteps));
  energy.input += share * (one.input - energy.input);
  energy.kept += share * (one.kept - energy.kept);
}

void CompressionUsage::scale(double factor) {
  energy.input *= factor * factor;
  energy.kept *= factor * factor;
}

}  // namespace lightcc
