// The one pass of top-k compression over a block, at every SIMD level with the same bits.
//
//   u = velocity * momentum + shard   (without momentum: u = shard)
//   acc = u + residual
//   |acc| >= threshold: its offset in the block and acc are appended to the lists, and residual and
//   velocity become 0.0; otherwise acc and u become the next residual and velocity.
//
// Nothing is contracted. Or, without `next_residual`, acc alone is written to `values`.
#pragma once

#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/kernels/topk_block_job.hpp"

namespace lightcc {

/// One level's code. The caller has set IEEE mode.
using TopkBlockKernel = TopkBlockResult (*)(const TopkBlockJob&);

/// The code of `level`, or of the machine's best where that is less.
TopkBlockKernel topk_block_kernel(SimdLevel level);

}  // namespace lightcc
