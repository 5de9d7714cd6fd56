// What devices have made of the operations of a handle that is done.
#pragma once

#include <cstdint>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation_table.hpp"

namespace lightcc {

enum class OnDevice : std::uint8_t { kGoesOn, kFinished, kFailed };

// Thread: any.

OnDevice on_device(const HandleState& state);
/// As World::order().
Result<bool> order_after(const HandleState& state, std::uintptr_t stream);
/// As World::uses_memory().
bool uses_memory(const HandleState& state);

}  // namespace lightcc
