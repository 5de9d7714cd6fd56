// When what a stream has been given so far is done: the ready event of a tensor that it writes.
#pragma once

#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/event.hpp"

namespace lightcc::cuda {

/// Records an event on `stream`, in `context`, which is current and outlives it. It may be asked
/// and dropped on any thread, also while a CUDA graph is captured on another one. That does not
/// wait. Errors, also of asking: kSystem.
Result<std::shared_ptr<ReadyEvent>> record_ready_event(const Context& context,
                                                       StreamHandle* stream,
                                                       Timing timing = Timing::kUnknown);

/// A ready event that is made of events of GPUs.
class GpuReadyEvent : public ReadyEvent {
 public:
  /// Appends all.
  virtual void add_events(std::vector<EventHandle*>& events) const = 0;
  /// Appends those of a GPU that know when they happened.
  virtual void add_timed_events(Device device, std::vector<EventHandle*>& events) const = 0;
};

/// Whether GPUs can wait for it.
bool is_of_gpus(const ReadyEvent& ready);

// The events of any ready event. They live as long as it does.

std::vector<EventHandle*> events_of(const ReadyEvent& ready);
std::vector<EventHandle*> timed_events_of(const ReadyEvent& ready, Device device);

}  // namespace lightcc::cuda
