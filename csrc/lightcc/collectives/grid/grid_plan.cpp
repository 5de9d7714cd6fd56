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

SharePlan grid_plan(std::size_t elements,
                    std::size_t element_bytes,
                    std::size_t members,
                    std::size_t chunk_bytes) {
  return SharePlan::even(elements, element_bytes, members, chunk_bytes / members / 64 * 64);
}

}  // namespace lightcc
