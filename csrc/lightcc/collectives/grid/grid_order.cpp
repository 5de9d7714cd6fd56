// (Idea: grid_order.hpp.)
#include "lightcc/collectives/grid/grid_order.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kTileBytes = std::size_t{2} << 10;

struct Tile {
  std::size_t offset = 0;  ///< Bytes.
  std::size_t count = 0;   ///< Elements.
};

void combine(std::span<const ReduceSource> sources,
             const Tile& tile,
             std::byte* out,
             std::byte* out2,
             const Reduction& reduction,
             SimdLevel level) {
  std::array<ReduceSource, kMaxRowWidth> shifted;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    shifted[i] = sources[i];
    if (sources[i].data != nullptr) {
      shifted[i].data += tile.offset;
    }
  }
  reduce(std::span(shifted).first(sources.size()), out, out2, tile.count, reduction, level);
}

// The highest of the levels has a sum of each group of `below` sources.
void combine_levels(std::span<const ReduceSource> sources,
                    std::span<const std::size_t> widths,
                    const Tile& tile,
                    std::byte* out,
                    std::byte* out2,
                    const Reduction& reduction,
                    SimdLevel level) {
  if (widths.size() <= 1) {
    combine(sources, tile, out, out2, reduction, level);
    return;
  }
  const auto lower = widths.first(widths.size() - 1);
  std::size_t below = 1;
  for (const std::size_t width : lower) {
    below *= width;
  }
  alignas(64) std::array<std::byte, kMaxRowWidth * kTileBytes> sums;  // NOLINT: filled by rows
  std::array<ReduceSource, kMaxRowWidth> rows{};
  std::size_t row = 0;
  for (std::size_t first = 0; first < sources.size(); first += below, ++row) {
    std::byte* const sum = sums.data() + row * kTileBytes;
    combine_levels(sources.subspan(first, std::min(below, sources.size() - first)),
                   lower,
                   tile,
                   sum,
                   nullptr,
                   within_blocks(reduction),
                   level);
    rows[row].data = sum;
  }
  reduce(std::span(rows).first(row), out, out2, tile.count, between_blocks(reduction), level);
}

}  // namespace

void reduce_in_levels(std::span<const ReduceSource> sources,
                      std::span<const std::size_t> widths,
                      std::byte* out,
                      std::byte* out2,
                      std::size_t count,
                      const Reduction& reduction,
                      SimdLevel level) {
  if (widths.size() <= 1) {
    reduce(sources, out, out2, count, reduction, level);
    return;
  }
  const std::size_t element = element_size(reduction.dtype);
  const std::size_t step = kTileBytes / element;
  for (std::size_t first = 0; first < count; first += step) {
    const Tile tile{.offset = first * element, .count = std::min(step, count - first)};
    combine_levels(sources,
                   widths,
                   tile,
                   out + tile.offset,
                   out2 == nullptr ? nullptr : out2 + tile.offset,
                   reduction,
                   level);
  }
}

}  // namespace lightcc
