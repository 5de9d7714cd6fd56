// How large the residual of a step of compression is beside what came in: a cheap sign of what it
// costs.
//
// Sums of squares of a shard and of its next residual, over a sample: fewer than 4096 elements all
// of them, else 32 to 64 runs of 64, other ones in every step. So they cost about a hundredth of
// the pass over 1 Mi elements, less beyond, and no kernel has to know of them.
//
// The part that a member adds up among more than two hosts is not in them: the residual there
// is that of a sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Sums of squares over a whole shard, estimated from the sample.
struct StepEnergy {
  double input = 0.0;  ///< What came in has it, before the residual is added.
  double kept = 0.0;   ///< The residual has it now.
};

/// `shard`: `numel` elements of `dtype`, any alignment; null: zeros. `residual`: as many lanes,
/// which are float64 for float64 and float32 else. `step` chooses the sample.
StepEnergy measure_energy(DataType dtype,
                          const std::byte* shard,
                          const std::byte* residual,
                          std::size_t numel,
                          std::uint64_t step);

/// What compression did for one tensor on this rank, since it first met it.
struct CompressionUsage {
  std::uint64_t steps = 0;        ///< That counted: those with a NaN or infinity do not.
  std::uint64_t dense_bytes = 0;  ///< As those of CompressionCounters.
  std::uint64_t sent_bytes = 0;
  StepEnergy energy;           ///< Means over about the last 100 steps of this rank's shard.
  std::uint64_t measured = 0;  ///< Steps whose energy was measured.

  void add(const StepEnergy& one);
  /// The tensor's elements are `factor` times what they were.
  void scale(double factor);
};

}  // namespace lightcc
