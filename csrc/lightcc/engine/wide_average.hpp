// Averages of integers of one byte in host memory, whose sum travels as int32 (has_wide_sums()).
//
// The Work keeps the wide copies. What a Group asks of the memory behind its arguments, these ask.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"

namespace lightcc {

/// As Group::allreduce(). `reduction` is of int8 or uint8, and has the average as its factor.
std::unique_ptr<Work> wide_allreduce(Group& group,
                                     std::vector<TensorSpan> tensors,
                                     Reduction reduction);
/// As Group::reduce_scatter(), likewise.
std::unique_ptr<Work> wide_reduce_scatter(Group& group,
                                          const std::byte* in,
                                          std::byte* out,
                                          std::vector<std::size_t> counts,
                                          Reduction reduction);

}  // namespace lightcc
