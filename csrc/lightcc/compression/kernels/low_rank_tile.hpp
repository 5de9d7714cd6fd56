// The arithmetic of low-rank compression on a piece of a matrix, at every SIMD level with the same
// bits. With M = scale * input + residual, and vectors l_j and r_j of both factors:
//
//   project   l_j += M r_j        over the columns of the tile
//   collect   r_j += M^T l_j      over the rows of the tile
//   split     out = postscale * sum of l_j sum_j^T;  residual = M - sum of l_j r_j^T
//
// project adds products in 64 bytes of lanes, which it adds up at the end of a tile. The others add
// one product after another to each lane. Nothing is contracted.
#pragma once

#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/kernels/low_rank_tile_job.hpp"

namespace lightcc {

/// One level's code. The caller has set IEEE mode.
struct LowRankKernels {
  /// False: a lane of M is no number, or beyond 2^100 (2^900 of float64), as infinities are.
  bool (*project)(const LowRankTile&) = nullptr;
  void (*collect)(const LowRankTile&) = nullptr;
  void (*split)(const LowRankTile&) = nullptr;
};

/// The code of `level`, or of the machine's best where that is less.
LowRankKernels low_rank_kernels(SimdLevel level);

}  // namespace lightcc
