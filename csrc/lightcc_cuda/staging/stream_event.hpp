// When what a stream has been given so far is done: the ready event of a tensor that it writes.
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/context.hpp"

namespace lightcc::cuda {

/// Records an event on `stream`, in `context`, which is current and outlives it. It may be asked
/// and dropped on any thread, also while a CUDA graph is captured on another one. That does not
/// wait. Errors, also of asking: kSystem.
Result<std::shared_ptr<ReadyEvent>> record_ready_event(const Context& context,
                                                       StreamHandle* stream);

}  // namespace lightcc::cuda
