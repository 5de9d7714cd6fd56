// Whether the members of a process set form a grid for two-level all-reduces, and which: a pure
// function of what all ranks know, so that all come to the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"

namespace lightcc {

/// Blocks of equally many ranks, at least two of each; the ranks of a block share a host.
struct Grid {
  /// By their lowest rank; ranks ascending.
  std::vector<std::vector<std::int32_t>> blocks;

  std::size_t block_size() const { return blocks.front().size(); }
  bool operator==(const Grid&) const = default;
};

struct GridChoice {
  std::optional<Grid> grid;
  /// Why there is none although it was asked for; empty: nothing to say.
  std::string objection;
};

/// Where a rank of the grid stands in it.
LIGHTCC_EXPORT GridPosition grid_position(const Grid& grid, std::int32_t rank);
/// The grid's blocks as rows, by the ranks' places in `ranks`, which is ascending.
LIGHTCC_EXPORT GridShape shape_of(const Grid& grid, const std::vector<std::int32_t>& ranks);

/// `ranks` ascending; `host_of` by world rank. `wanted` and `intra_size` are LIGHT_2D_ALLREDUCE and
/// LIGHT_INTRA_SIZE. Where a grid would be no better than a flat group (one block, or blocks of
/// one) there is none. That is an objection only of all ranks, where two levels are asked for.
GridChoice choose_grid(const std::vector<std::int32_t>& ranks,
                       const std::vector<int>& host_of,
                       std::optional<bool> wanted,
                       std::int64_t intra_size);

}  // namespace lightcc
