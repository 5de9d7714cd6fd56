// How the progress loop looks for work before it sleeps.
#pragma once

#include "lightcc/base/clock.hpp"

namespace lightcc {

/// How long to look for work before sleeping, and how.
struct SpinPolicy {
  Duration foreground{};  ///< By a thread that has nothing else to do.
  Duration background{};
  bool yield = false;       ///< Somebody else may need this core to make our work possible.
  bool shuts_gate = false;  ///< What arrives would wake a thread that sleeps.
};

/// `networked`: what a rank waits for may come from the kernel, which needs a core for it.
SpinPolicy spin_policy(int local_size, bool networked);

/// Between two looks.
void relax(bool yield);

}  // namespace lightcc
