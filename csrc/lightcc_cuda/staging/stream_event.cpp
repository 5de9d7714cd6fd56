#include "lightcc_cuda/staging/stream_event.hpp"

#include <utility>

#include "lightcc_cuda/driver/context.hpp"

namespace lightcc::cuda {
namespace {

using Event = Owned<EventHandle*, &Functions::destroy_event>;

class StreamEvent final : public ReadyEvent {
 public:
  StreamEvent(const Driver& driver, Event event) : driver_(driver), event_(std::move(event)) {}

  Result<bool> is_ready() override {
    const Code code = driver_.call().query_event(event_.get());
    if (code == kErrorNotReady) {
      return false;
    }
    LIGHTCC_RETURN_IF_ERROR(driver_.check(code, "cuEventQuery"));
    return true;
  }

 private:
  const Driver& driver_;
  Event event_;
};

}  // namespace

Result<std::shared_ptr<ReadyEvent>> record_ready_event(const Driver& driver, StreamHandle* stream) {
  EventHandle* handle = nullptr;
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().create_event(&handle, kEventWithoutTiming), "cuEventCreate"));
  Event event(driver, handle);
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().record_event(handle, stream), "cuEventRecord"));
  return std::shared_ptr<ReadyEvent>(std::make_shared<StreamEvent>(driver, std::move(event)));
}

}  // namespace lightcc::cuda
