#include "lightcc_cuda/staging/stream_event.hpp"

#include <optional>
#include <utility>

namespace lightcc::cuda {
namespace {

using Event = Owned<EventHandle*, &Functions::destroy_event>;

class StreamEvent final : public ReadyEvent {
 public:
  StreamEvent(const Context& context, Event event) : context_(context), event_(std::move(event)) {}
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  ~StreamEvent() override {
    const CurrentContext current(context_);
    event_.reset();
  }

  Result<bool> is_ready() override {
    const CurrentContext current(context_);
    LIGHTCC_RETURN_IF_ERROR(current.status());
    const Driver& driver = context_.driver();
    const Code code = driver.call().query_event(event_->get());
    if (code == kErrorNotReady) {
      return false;
    }
    LIGHTCC_RETURN_IF_ERROR(driver.check(code, "cuEventQuery"));
    return true;
  }

 private:
  const Context& context_;
  std::optional<Event> event_;
};

}  // namespace

Result<std::shared_ptr<ReadyEvent>> record_ready_event(const Context& context,
                                                       StreamHandle* stream) {
  const Driver& driver = context.driver();
  EventHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().create_event(&handle, kEventWithoutTiming), "cuEventCreate"));
  Event event(driver, handle);
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().record_event(handle, stream), "cuEventRecord"));
  return std::shared_ptr<ReadyEvent>(std::make_shared<StreamEvent>(context, std::move(event)));
}

}  // namespace lightcc::cuda
