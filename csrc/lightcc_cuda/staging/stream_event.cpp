#include "lightcc_cuda/staging/stream_event.hpp"

#include <chrono>
#include <utility>

namespace lightcc::cuda {
namespace {

/// Null: no GPU can wait for it.
const StreamEvents* as_stream_events(const ReadyEvent& ready) {
  return dynamic_cast<const StreamEvents*>(&ready);
}

}  // namespace

Notifiers::~Notifiers() {
  const MutexLock lock(mutex_);
  while (!all_.empty()) {
    const CurrentContext current(*all_.begin()->first);
    all_.erase(all_.begin());
  }
}

Result<std::shared_ptr<const Passing>> Notifiers::notify(const Context& context,
                                                         EventHandle* event,
                                                         std::function<void()> ring) {
  const CurrentContext current(context);
  LIGHTCC_RETURN_IF_ERROR(current.status());
  const MutexLock lock(mutex_);
  auto found = all_.find(&context);
  if (found == all_.end()) {
    LIGHTCC_ASSIGN_OR_RETURN(EventNotifier made, EventNotifier::make(context.driver()));
    found = all_.emplace(&context, std::move(made)).first;
  }
  return found->second.notify(event, std::move(ring));
}

StreamEvents::~StreamEvents() {
  while (!all_.empty()) {
    const CurrentContext current(all_.back().context);
    all_.pop_back();
  }
}

Status StreamEvents::record(const Context& context, StreamHandle* stream, Timing timing) {
  LIGHTCC_ASSIGN_OR_RETURN(Event event, record_event(context.driver(), stream, timing));
  all_.push_back({.context = context, .event = std::move(event), .timing = timing});
  return {};
}

Result<bool> StreamEvents::is_ready() {
  for (Recorded& it : all_) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool ready, is_ready(it));
    if (!ready) {
      return false;
    }
  }
  return true;
}

// Where a thread of the driver says it, the driver is asked only to see failures.
Result<bool> StreamEvents::is_ready(Recorded& it) {
  if (it.passing != nullptr) {
    constexpr Duration kErrorInterval = std::chrono::milliseconds(10);
    const TimePoint now = Clock::system().now();
    if (it.passing->is_over() || now - it.asked < kErrorInterval) {
      return it.passing->is_over();
    }
    it.asked = now;
  }
  const CurrentContext current(it.context);
  LIGHTCC_RETURN_IF_ERROR(current.status());
  return has_happened(it.context.driver(), it.event);
}

bool StreamEvents::rings(const std::shared_ptr<LoopBell>& bell) {
  for (Recorded& it : all_) {
    auto passing = notifiers_.notify(it.context, it.event.get(), [bell] { bell->ring(); });
    if (!passing.ok()) {
      return false;  // is_ready() says why, if it still fails.
    }
    it.passing = std::move(*passing);
  }
  return true;
}

bool is_of_gpus(const ReadyEvent& ready) {
  return as_stream_events(ready) != nullptr;
}

std::vector<EventHandle*> events_of(const ReadyEvent& ready) {
  std::vector<EventHandle*> events;
  if (const StreamEvents* const of_gpus = as_stream_events(ready); of_gpus != nullptr) {
    for (const StreamEvents::Recorded& it : of_gpus->all_) {
      events.push_back(it.event.get());
    }
  }
  return events;
}

std::vector<EventHandle*> timed_events_of(const ReadyEvent& ready, Device device) {
  std::vector<EventHandle*> events;
  if (const StreamEvents* const of_gpus = as_stream_events(ready); of_gpus != nullptr) {
    for (const StreamEvents::Recorded& it : of_gpus->all_) {
      if (it.timing == Timing::kKnown && it.context.device() == device) {
        events.push_back(it.event.get());
      }
    }
  }
  return events;
}

}  // namespace lightcc::cuda
