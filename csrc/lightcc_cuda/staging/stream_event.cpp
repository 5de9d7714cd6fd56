#include "lightcc_cuda/staging/stream_event.hpp"

#include <optional>
#include <utility>

namespace lightcc::cuda {
namespace {

class StreamEvent final : public GpuReadyEvent {
 public:
  StreamEvent(const Context& context, Event event, Timing timing)
      : context_(context), event_(std::move(event)), timing_(timing) {}
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  ~StreamEvent() override {
    const CurrentContext current(context_);
    event_.reset();
  }

  Result<bool> is_ready() override {
    const CurrentContext current(context_);
    LIGHTCC_RETURN_IF_ERROR(current.status());
    return has_happened(context_.driver(), *event_);
  }

  void add_events(std::vector<EventHandle*>& events) const override {
    events.push_back(event_->get());
  }
  void add_timed_events(Device device, std::vector<EventHandle*>& events) const override {
    if (timing_ == Timing::kKnown && device == context_.device()) {
      events.push_back(event_->get());
    }
  }

 private:
  const Context& context_;
  std::optional<Event> event_;
  Timing timing_;
};

}  // namespace

Result<std::shared_ptr<ReadyEvent>> record_ready_event(const Context& context,
                                                       StreamHandle* stream,
                                                       Timing timing) {
  LIGHTCC_ASSIGN_OR_RETURN(Event event, record_event(context.driver(), stream, timing));
  return std::shared_ptr<ReadyEvent>(
      std::make_shared<StreamEvent>(context, std::move(event), timing));
}

bool is_of_gpus(const ReadyEvent& ready) {
  return dynamic_cast<const GpuReadyEvent*>(&ready) != nullptr;
}

std::vector<EventHandle*> events_of(const ReadyEvent& ready) {
  std::vector<EventHandle*> events;
  if (const auto* const of_gpus = dynamic_cast<const GpuReadyEvent*>(&ready); of_gpus != nullptr) {
    of_gpus->add_events(events);
  }
  return events;
}

std::vector<EventHandle*> timed_events_of(const ReadyEvent& ready, Device device) {
  std::vector<EventHandle*> events;
  if (const auto* const of_gpus = dynamic_cast<const GpuReadyEvent*>(&ready); of_gpus != nullptr) {
    of_gpus->add_timed_events(device, events);
  }
  return events;
}

}  // namespace lightcc::cuda
