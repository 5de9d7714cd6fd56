// Has a thread of the driver's say when a GPU passes an event, so that nobody has to ask.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

/// An event that a GPU passes.
class Passing {
 public:
  explicit Passing(std::function<void()> ring) : ring_(std::move(ring)) {}

  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  /// Nobody may hold this any more when it returns.
  void end() {
    const std::function<void()> ring = ring_;
    is_over_.store(true, std::memory_order_release);
    ring();
  }

 private:
  const std::function<void()> ring_;
  std::atomic<bool> is_over_{false};
};

/// Thread: one at a time, with the context current, also where it goes. Errors: kSystem.
class EventNotifier {
 public:
  static Result<EventNotifier> make(const Driver& driver);

  /// A thread of the driver's calls `ring`, which may call nothing of the driver's, when the GPU
  /// passes `event`, and those before. Where the GPU breaks, nobody does. A stream waits for such a
  /// call, so it is on one of its own.
  Result<std::shared_ptr<const Passing>> notify(EventHandle* event, std::function<void()> ring);

 private:
  EventNotifier(const Driver& driver, Stream stream)
      : driver_(driver), stream_(std::move(stream)) {}

  const Driver& driver_;
  std::deque<std::shared_ptr<Passing>> notified_;  // The driver has their addresses.
  Stream stream_;                                  // It is waited for before they go.
};

}  // namespace lightcc::cuda
