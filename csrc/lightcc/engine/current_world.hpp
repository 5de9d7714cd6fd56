// The World of this process, for front ends that find no object of Python's: kernels inside graphs.
#pragma once

#include <functional>

#include "lightcc/base/export.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// Makes `world` the process's current one; null: there is none. Waits until nobody uses the one
/// before. Whoever destroys a World that is current takes it away first. Thread: any.
LIGHTCC_EXPORT void set_current_world(World* world);

/// Calls `use` with the current World, which stays meanwhile; false where there is none. `use` must
/// call neither of these two functions, nor wait for an operation. Thread: any.
LIGHTCC_EXPORT bool use_current_world(const std::function<void(World&)>& use);

}  // namespace lightcc
