// A low-rank all-reduce of the tensors of a bucket. (Essay: low_rank_work.cpp.)
#pragma once

#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/compressed_item.hpp"

namespace lightcc {

/// `tensors` all have the dtype of `job.reduction`, whose op is kSum, and entries with low_rank; no
/// two are the same. `group` outlives the Work, and has all members that the tensors are of. Ends
/// like an all-reduce of the group.
std::unique_ptr<Work> make_low_rank_allreduce(Group& group,
                                              std::vector<CompressedTensor> tensors,
                                              const CompressedJob& job);

}  // namespace lightcc
