#include "lightcc/engine/handle_on_device.hpp"

#include <algorithm>
#include <atomic>

namespace lightcc {

OnDevice on_device(const HandleState& state) {
  OnDevice all = OnDevice::kFinished;
  for (const auto& end : state.ends) {
    const Result<bool> finished = end->is_finished();
    if (!finished.ok()) {
      return OnDevice::kFailed;
    }
    all = *finished ? all : OnDevice::kGoesOn;
  }
  return all;
}

Result<bool> order_after(const HandleState& state, std::uintptr_t stream) {
  bool ordered = true;
  for (const auto& end : state.ends) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool waits, end->order(stream));
    ordered = ordered && waits;
  }
  return ordered;
}

bool uses_memory(const HandleState& state) {
  return !state.done.load(std::memory_order_acquire) ||
         std::ranges::any_of(state.ends, [](const auto& end) { return end->uses_memory(); });
}

}  // namespace lightcc
