// How much a step of compression kept back, beside what came in: a cheap sign of what it costs.
//
// Sums of squares of a shard and of its next residual, over a sample: fewer than 4096 elements all
// of them, else 32 to 64 runs of 64, other ones in every step. So they cost about a hundredth of
// the pass over 1 Mi elements, less beyond, and no kernel has to know of them.
//
// The part that a member adds up among more than two hosts is not in them: what is kept back there
// is that of a sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Sums of squares over a whole shard, estimated from the sample.
struct StepEnergy {
  double input = 0.0;  ///< Of what came in, before what was kept back is added.
  double kept = 0.0;   ///< Of what is kept back now.
};

/// `shard`: `numel` elements of `dtype`, any alignment; null: zeros. `residual`: as many lanes,
/// which are float64 for float64 and float32 else. `step` chooses the sample.
StepEnergy measure_energy(DataType dtype,
                          const std::byte* shard,
                          const std::byte* residual,
                          std::size_t numel,
                          std::uint64_t step);

}  // namespace lightcc
