// Runs completions, and knows which threads are inside one. The rules are World's (world.hpp).
#pragma once

#include <functional>

#include "lightcc/base/status.hpp"

namespace lightcc {

/// Runs one completion on this thread. An exception that leaves it is logged.
void run_completion(const std::function<void()>& completion);

/// The error for what would wait for the thread that runs a completion. `what` begins a sentence.
Status refused_in_completion(const char* what);

}  // namespace lightcc
