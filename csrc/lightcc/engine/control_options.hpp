// What the control plane is told about its rank: its place in the tree, and the knobs.
#pragma once

#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/control/control_plane.hpp"
#include "lightcc/engine/membership.hpp"

namespace lightcc {

/// `world` outlives them. `watched`: the ranks of this host whose signs of life the driver tells.
ControlOptions control_options(const Membership& world,
                               const Knobs& knobs,
                               FusionRule fusion,
                               SimdLevel simd,
                               std::vector<int> watched);

}  // namespace lightcc
