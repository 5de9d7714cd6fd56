// When what streams have been given so far is done: the ready event of a tensor that they write.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/event.hpp"
#include "lightcc_cuda/driver/event_notifier.hpp"

namespace lightcc::cuda {

/// Notifiers by contexts, which outlive them. Thread: any.
class Notifiers {
 public:
  Notifiers() = default;
  Notifiers(const Notifiers&) = delete;
  Notifiers& operator=(const Notifiers&) = delete;
  ~Notifiers();

  /// Makes `context` current for it. Errors: kSystem.
  Result<std::shared_ptr<const Passing>> notify(const Context& context,
                                                EventHandle* event,
                                                std::function<void()> ring)
      LIGHTCC_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<const Context*, EventNotifier> all_ LIGHTCC_GUARDED_BY(mutex_);
};

/// Events of several streams as one. It may be asked and dropped on any thread, also while a CUDA
/// graph is captured on another one. That does not wait. Errors, also of asking: kSystem.
class StreamEvents final : public ReadyEvent {
 public:
  /// `owner` keeps `notifiers` and all contexts.
  StreamEvents(std::shared_ptr<const void> owner, Notifiers& notifiers)
      : owner_(std::move(owner)), notifiers_(notifiers) {}
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;
  ~StreamEvents() override;

  /// Adds a stream of `context`, which is current.
  Status record(const Context& context, StreamHandle* stream, Timing timing);
  bool empty() const { return all_.empty(); }

  Result<bool> is_ready() override;
  bool rings(const std::shared_ptr<LoopBell>& bell) override;

 private:
  friend std::vector<EventHandle*> events_of(const ReadyEvent& ready);
  friend std::vector<EventHandle*> timed_events_of(const ReadyEvent& ready, Device device);

  struct Recorded {
    const Context& context;
    Event event;
    Timing timing;
    std::shared_ptr<const Passing> passing = nullptr;  // Null: nobody was asked to ring.
    TimePoint asked{};
  };
  static Result<bool> is_ready(Recorded& it);

  std::shared_ptr<const void> owner_;
  Notifiers& notifiers_;
  std::vector<Recorded> all_;
};

/// Whether GPUs can wait for it.
bool is_of_gpus(const ReadyEvent& ready);

// The events of any ready event. They live as long as it does.

std::vector<EventHandle*> events_of(const ReadyEvent& ready);
/// Those of a GPU that know when they happened.
std::vector<EventHandle*> timed_events_of(const ReadyEvent& ready, Device device);

}  // namespace lightcc::cuda
