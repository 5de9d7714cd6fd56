// All-gather from and to the tensors of a bucket, by a group's all-gather of plain memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Group::allgather_bucket() in host memory, with `group.allgather()`: through memory of its own
/// where tensors do not lie together. `group` outlives the Work.
std::unique_ptr<Work> make_gather_bucket(Group& group,
                                         const std::vector<TensorSpan>& tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype);

}  // namespace lightcc
