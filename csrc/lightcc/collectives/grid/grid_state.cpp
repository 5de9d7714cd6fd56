// (Idea: grid_state.hpp; essay: grid_group.cpp.)
#include "lightcc/collectives/grid/grid_state.hpp"

#include <cmath>
#include <cstddef>

#include "lightcc/collectives/grid/grid_plan.hpp"

namespace lightcc {

void GridState::fail(const Status& why) {
  if (!status.ok()) {
    return;
  }
  status = why;
  levels.inter.clear();  // Closes the channels, so that the peers hear of it.
  levels.other_columns.clear();
  levels.intra.reset();
  if (options.on_fail) {
    options.on_fail(why);
  }
}

std::size_t GridState::chunk_bytes(std::size_t bytes) const {
  return options.chunk_bytes != 0 ? options.chunk_bytes : grid_chunk_bytes(bytes);
}

bool scales_early(const Reduction& reduction) {
  return reduction.dtype == DataType::kFloat16 && reduction.op == ReduceOp::kSum &&
         std::abs(reduction.postscale) < 1.0;
}

Reduction within_blocks(const Reduction& reduction) {
  Reduction first = reduction;
  first.postscale = scales_early(reduction) ? reduction.postscale : 1.0;
  return first;
}

Reduction between_blocks(const Reduction& reduction) {
  Reduction second = reduction;
  second.prescale = 1.0;
  second.postscale = scales_early(reduction) ? 1.0 : reduction.postscale;
  return second;
}

}  // namespace lightcc
