// Residuals of compression, for other ranks than those that saved them: after an elastic job has
// changed its world, or where a checkpoint is loaded by more ranks or fewer.
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"

namespace lightcc {

/// What a rank at `position` remembers of a tensor after other ranks, of whatever grid, that had
/// saved `parts`: their residuals are added up, so that nothing is lost as long as each part
/// goes to one block. Of a part this rank takes the elements of its own shard. `like`: what any
/// rank had saved of the tensor at that step. kInvalidArgument says what does not fit.
LIGHTCC_EXPORT Result<Bytes> regroup_residual(std::span<const std::byte> like,
                                              std::span<const std::span<const std::byte>> parts,
                                              const GridPosition& position);

}  // namespace lightcc
