// A compressed reduce-scatter. (Essay: compressed_scatter.cpp.)
#pragma once

#include <cstddef>
#include <memory>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/exchange/compressed_allreduce.hpp"
#include "lightcc/compression/residual/residual_store.hpp"

namespace lightcc {

struct CompressedScatterJob {
  Reduction reduction;                      ///< kSum.
  CompressionSpec spec;                     ///< Quantised.
  GridPosition position;                    ///< This member's, on `levels`.
  CompressionCounters* counters = nullptr;  ///< Outlives the Work.
};

/// `rows.count`: elements of a row. `rows.in` has a row for each member of the group, null: zeros.
/// `rows.out` has this member's, null: it is not wanted. `entry`: of scattered rows; null: what
/// rounding takes away is dropped. Ends like the reduce-scatter of a grid.
std::unique_ptr<Work> make_compressed_scatter(const CompressedLevels& levels,
                                              const TensorSpan& rows,
                                              std::shared_ptr<TensorResidual> entry,
                                              const CompressedScatterJob& job);

}  // namespace lightcc
