// Adasum: a sum of gradients that becomes an average where they agree (Maleki et al., "Scaling
// Distributed Training with Adaptive Summation", MLSys 2021).
//
// Two vectors combine as (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: orthogonal ones add, equal
// ones average. A vector whose squared norm is next to nothing (below sqrt(DBL_MIN)) keeps the
// factor 1. More than two combine in a binary tree, which is part of the result's definition:
// (0,1), (2,3), ... form the next level, an odd last one passes through, and so on until one is
// left.
//
// Numbers: dot products and factors in float64, summed in an order that depends on the count alone,
// so bits do not depend on the machine; inner nodes are kept in float32 (float64 for float64), so
// float16 and bfloat16 are rounded once. Squared norms above DBL_MAX are not handled: the result is
// NaN.
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Combines `vectors`, in rank order, into `out`.
///
/// A null vector is zeros. `out` may be the same memory as vectors, exactly. At least one vector;
/// `dtype` is floating-point, anything else leaves `out` alone. Allocates floor(log2(n)) + 1
/// vectors of inner nodes.
void adasum_combine(std::span<const std::byte* const> vectors,
                    std::byte* out,
                    std::size_t count,
                    DataType dtype);

}  // namespace lightcc
