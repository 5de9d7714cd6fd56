// A second Plane: it serves "cuda" memory, which is host memory by another name, over the world's
// transport alone. Its compression is done some turns after it was asked for, as a device's is.
#pragma once

#include <atomic>
#include <memory>

#include "lightcc/engine/world.hpp"

namespace lightcc::testing {

/// What the plane of one rank was asked for.
struct NetPlaneUse {
  std::atomic<int> allocations{0};
  std::atomic<int> copies{0};
  std::atomic<int> adasums{0};
};

/// The world needs a transport, so several hosts or blocks. `use` may be null.
PlaneMaker net_plane(std::shared_ptr<NetPlaneUse> use = nullptr);

}  // namespace lightcc::testing
