// An event of a GPU that outlives who has recorded it, for whoever waits on the GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/event.hpp"

namespace lightcc::cuda {

/// A driver, and the primary context of a GPU.
class SharedGpu {
 public:
  /// Errors: of Driver::open(), kSystem.
  static Result<std::shared_ptr<const SharedGpu>> open(const std::string& file, int device);
  SharedGpu(const SharedGpu&) = delete;
  SharedGpu& operator=(const SharedGpu&) = delete;
  ~SharedGpu();

  const Driver& driver() const { return driver_; }
  const Context& context() const { return *context_; }

 private:
  friend class SharedEvent;

  explicit SharedGpu(const Driver& driver) : driver_(driver) {}

  const Driver driver_;
  std::optional<Context> context_;  // Made when the driver is where it stays.
  mutable Mutex mutex_;
  mutable std::vector<Event> events_ LIGHTCC_GUARDED_BY(mutex_);  // That nobody uses any more.
};

/// Thread: any.
class SharedEvent {
 public:
  /// Records it on `stream`, in the context of `gpu`, which is current. Errors: kSystem.
  static Result<std::shared_ptr<const SharedEvent>> record(std::shared_ptr<const SharedGpu> gpu,
                                                           StreamHandle* stream);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();

  EventHandle* get() const { return event_.get(); }
  /// Whether all has ended that came before. The context is current. Errors: kSystem.
  Result<bool> has_passed() const;
  /// Has `stream` wait for it, on the GPU. False: it is being captured into a CUDA graph, which
  /// that would spoil. Errors: kSystem. Blocks: where the stream's queue is full.
  Result<bool> order(std::uintptr_t stream) const;

 private:
  SharedEvent(std::shared_ptr<const SharedGpu> gpu, Event event);

  std::shared_ptr<const SharedGpu> gpu_;
  Event event_;
};

}  // namespace lightcc::cuda
