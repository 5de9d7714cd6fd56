// A compressed all-reduce of the tensors of a bucket. (Essay: compressed_allreduce.cpp.)
#pragma once

#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"

namespace lightcc {

struct GridState;

/// What a compressed all-reduce runs over; all of it outlives the Work.
struct CompressedLevels {
  std::shared_ptr<GridState> grid;  ///< Null: blocks of one member.
  Group* flat = nullptr;            ///< Joins the blocks where there is no grid.
  /// Where tensors are in other memory than what `grid` runs on: scatters and gathers them, in the
  /// place of its intra level (engine/staged/staged_shards.hpp). Else null.
  Group* shards = nullptr;
};

/// `tensors` all have the dtype of `job.reduction`, whose op is kSum. The entry of each has the
/// place of this member; no two are the same. Ends like the all-reduce of a grid: when it fails, or
/// is dropped before its end, both levels end.
std::unique_ptr<Work> make_compressed_allreduce(CompressedLevels levels,
                                                std::vector<CompressedTensor> tensors,
                                                const CompressedJob& job);

}  // namespace lightcc
