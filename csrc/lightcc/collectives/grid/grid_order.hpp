// The order in which levels combine, where the contributions of several levels lie side by side.
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"

namespace lightcc {

/// As reduce(), with the bits of levels that have these widths, from the lowest up. With one width,
/// or none, it is reduce(). Each width is at most kMaxRowWidth. hot: no allocation, no lock.
void reduce_in_levels(std::span<const ReduceSource> sources,
                      std::span<const std::size_t> widths,
                      std::byte* out,
                      std::byte* out2,
                      std::size_t count,
                      const Reduction& reduction,
                      SimdLevel level);

}  // namespace lightcc
