// Events of a GPU.
#pragma once

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

using Event = Owned<EventHandle*, &Functions::destroy_event>;

/// Whether an event knows when it happened, which costs the GPU a little.
enum class Timing : bool { kUnknown, kKnown };

// All in the current context. Errors: kSystem.

Result<Event> make_event(const Driver& driver, Timing timing);
/// A new one, behind what `stream` has been given so far.
Result<Event> record_event(const Driver& driver,
                           StreamHandle* stream,
                           Timing timing = Timing::kUnknown);
/// Whether all has ended that came before its record.
Result<bool> has_happened(const Driver& driver, const Event& event);

}  // namespace lightcc::cuda
