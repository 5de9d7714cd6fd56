// Adasum as a Work over any Group: gather every contribution, combine them locally in a fixed tree.
//
// Saeed Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021. Every
// member combines the same vectors in the same order, so replicas are bit-identical. It moves and
// holds n times the tensor, where recursive vector halving would move about twice: right for the
// few ranks on which Adasum is used, and simple. Per tensor, never over a fused bucket.
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"

namespace lightcc {

/// Adasum does not depend on the scale of its inputs, so both factors of `reduction` are applied to
/// the result. `tensor.in` is not null. Errors: kSystem when n times the tensor cannot be
/// allocated.
Result<std::unique_ptr<Work>> make_adasum_work(Group& group,
                                               const TensorSpan& tensor,
                                               const Reduction& reduction,
                                               SimdLevel simd);

}  // namespace lightcc
