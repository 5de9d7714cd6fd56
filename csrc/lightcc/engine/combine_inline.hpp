// Rank 0 does small all-reduces itself (control/inline_allreduce.hpp), with the bits that the
// groups of the host's plane would give.
#pragma once

#include "lightcc/base/knobs.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/control/inline_allreduce.hpp"
#include "lightcc/engine/membership.hpp"

namespace lightcc {

/// `world` outlives it. It leaves to groups what is not combined element by element.
CombineInline make_combine_inline(const Membership& world, const Knobs& knobs, SimdLevel simd);

}  // namespace lightcc
