#include "lightcc_cuda/driver/shared_event.hpp"

#include <utility>

namespace lightcc::cuda {

Result<std::shared_ptr<const SharedGpu>> SharedGpu::open(const std::string& file, int device) {
  LIGHTCC_ASSIGN_OR_RETURN(const Driver driver, Driver::open(file));
  std::shared_ptr<SharedGpu> gpu(new SharedGpu(driver));
  LIGHTCC_ASSIGN_OR_RETURN(Context context, Context::retain(gpu->driver_, device));
  gpu->context_.emplace(std::move(context));
  return std::shared_ptr<const SharedGpu>(std::move(gpu));
}

SharedGpu::~SharedGpu() {
  if (context_.has_value()) {
    const CurrentContext current(*context_);
    const MutexLock lock(mutex_);
    events_.clear();
  }
}

SharedEvent::SharedEvent(std::shared_ptr<const SharedGpu> gpu, Event event)
    : gpu_(std::move(gpu)), event_(std::move(event)) {}

SharedEvent::~SharedEvent() {
  const MutexLock lock(gpu_->mutex_);
  gpu_->events_.push_back(std::move(event_));
}

Result<std::shared_ptr<const SharedEvent>> SharedEvent::record(std::shared_ptr<const SharedGpu> gpu,
                                                               StreamHandle* stream) {
  std::optional<Event> event;
  {
    const MutexLock lock(gpu->mutex_);
    if (!gpu->events_.empty()) {
      event.emplace(std::move(gpu->events_.back()));
      gpu->events_.pop_back();
    }
  }
  if (!event.has_value()) {
    LIGHTCC_ASSIGN_OR_RETURN(Event made, make_event(gpu->driver(), Timing::kUnknown));
    event.emplace(std::move(made));
  }
  LIGHTCC_RETURN_IF_ERROR(gpu->driver().record_event(event->get(), stream));
  return std::shared_ptr<const SharedEvent>(new SharedEvent(std::move(gpu), std::move(*event)));
}

Result<bool> SharedEvent::has_passed() const {
  return has_happened(gpu_->driver(), event_);
}

Result<bool> SharedEvent::order(std::uintptr_t stream) const {
  const Driver& driver = gpu_->driver();
  const CurrentContext current(gpu_->context());
  LIGHTCC_RETURN_IF_ERROR(current.status());
  auto* const handle = reinterpret_cast<StreamHandle*>(stream);  // NOLINT: a handle
  LIGHTCC_ASSIGN_OR_RETURN(const bool captured, is_captured(driver, handle));
  if (captured) {
    return false;
  }
  LIGHTCC_RETURN_IF_ERROR(driver.wait_for_event(handle, event_.get(), 0U));
  return true;
}

}  // namespace lightcc::cuda
