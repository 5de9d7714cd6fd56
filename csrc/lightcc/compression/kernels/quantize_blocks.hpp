// Blocks of 128 lanes to 8, 4 or 1 bits and back, at every SIMD level with the same bits.
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
// With 1 bit, the scale is the mean magnitude of the block, rounded up likewise, and a code is the
// sign of acc. What is left is rounded to a lane: the bits that a lane as large as the scale has no
// room for are gone, as those of any sum of lanes are.
//
// A code of fp8 is an E4M3 number (OCP 8-bit Floating Point Specification): L = 448, and acc times
// the inverse is rounded to the nearest such number, ties to even. That has at most 4 significant
// bits, so what is said above holds. Its zero has a sign. A NaN code is decoded to NaN, and no
// sender writes one.
//
// A code of 4 bits shares its byte with that of the element 64 positions later, which has the upper
// bits. Bit j of byte i is the sign of element i + 16 j, set below zero.
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
