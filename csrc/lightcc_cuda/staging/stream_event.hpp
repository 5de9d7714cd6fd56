// When what a stream has been given so far is done: the ready event of a tensor that it writes.
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

/// Records an event on `stream`, in the context that is current. The driver outlives it. Asking it
/// is one call of the driver, which does not wait. Errors, also of asking: kSystem.
Result<std::shared_ptr<ReadyEvent>> record_ready_event(const Driver& driver, StreamHandle* stream);

}  // namespace lightcc::cuda
