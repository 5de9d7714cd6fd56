// Blocks of 128 lanes to 8 or 4 bits and back, at every SIMD level with the same bits.
//
//   acc = input + residual;  peak = the largest magnitude of the block
//   scale = peak / L, rounded up to the upper 16 bits of a lane; L = 127, or 7 of 4 bits
//   code = acc * (1 / scale), rounded to the nearest integer, ties to even, within -L .. L
//   next = acc - scale * code
//
// scale * code and the difference are exact: a scale has 8 significant bits (5 of float64) and a
// code at most 7, and what is left is a multiple of acc's last place that is not larger than acc.
// So scale * code + next is acc, in every bit.
//
// A scale is a normal number whose product with L is finite. Where it would be smaller, it is 0,
// the codes are, and everything is left; where it would be larger, the largest such number stands
// in, and the codes saturate. Nothing is contracted.
//
// A code of 4 bits shares its byte with that of the element 64 positions later, which has the upper
// bits.
#pragma once

#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/kernels/quantize_blocks_job.hpp"

namespace lightcc {

/// One level's code. The caller has set IEEE mode.
using QuantizeKernel = bool (*)(const QuantizeJob&);
using DequantizeKernel = void (*)(const DequantizeJob&);

/// The code of `level`, or of the machine's best where that is less.
QuantizeKernel quantize_kernel(SimdLevel level);
DequantizeKernel dequantize_kernel(SimdLevel level);

}  // namespace lightcc
