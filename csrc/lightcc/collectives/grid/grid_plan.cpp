#include "lightcc/collectives/grid/grid_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "lightcc/collectives/share_plan.hpp"

namespace lightcc {
namespace {

// What a block moves through both halves in the time that one more chunk costs on the network.
// Measured with four ranks on two cores and 1 Gb/s (python -m lightcc.bench): for 16 and 64 MiB,
// chunks of 1 MiB are better than both 512 KiB and 3 MiB.
constexpr double kBytesPerChunkCost = 48e3;
constexpr std::size_t kMinChunkBytes = std::size_t{256} << 10;

}  // namespace

std::size_t grid_chunk_bytes(std::size_t bytes) {
  // With c chunks the time is about c * cost + bytes / c / speed: least at c^2 = bytes / (cost *
  // speed).
  const double balanced = std::sqrt(static_cast<double>(bytes) * kBytesPerChunkCost);
  return std::max(kMinChunkBytes, static_cast<std::size_t>(balanced));
}

std::size_t grid_piece_bytes(const std::vector<std::size_t>& counts,
                             std::size_t element_bytes,
                             std::size_t chunk_bytes) {
  std::size_t total = 0;
  std::size_t maximum = 0;
  for (const std::size_t count : counts) {
    total += count * element_bytes;
    maximum = std::max(maximum, count * element_bytes);
  }
  const std::size_t chunks =
      std::max<std::size_t>(1, total / std::max<std::size_t>(1, chunk_bytes));
  return std::max<std::size_t>(1, maximum / chunks);
}

GridSchedule::GridSchedule(std::size_t chunks, std::size_t lead)
    : chunks_(chunks), lead_(std::max<std::size_t>(1, std::min(lead, chunks))) {}

GridSchedule::Step GridSchedule::step(std::size_t index) const {
  if (index < lead_) {
    return {.half = Half::kScatter, .chunk = index};
  }
  const std::size_t later = index - lead_;
  const std::size_t behind = chunks_ - lead_;  // Scatters that follow the first gather.
  if (later < 2 * behind) {
    return later % 2 == 0 ? Step{.half = Half::kGather, .chunk = later / 2}
                          : Step{.half = Half::kScatter, .chunk = lead_ + later / 2};
  }
  return {.half = Half::kGather, .chunk = later - behind};
}

GridPlan::GridPlan(std::size_t elements,
                   std::size_t element_bytes,
                   std::size_t members,
                   std::size_t chunk_bytes)
    : shares_(SharePlan::even(elements, element_bytes, members, chunk_bytes / members / 64 * 64)) {}

}  // namespace lightcc
