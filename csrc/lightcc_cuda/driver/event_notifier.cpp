#include "lightcc_cuda/driver/event_notifier.hpp"

namespace lightcc::cuda {

Result<EventNotifier> EventNotifier::make(const Driver& driver) {
  LIGHTCC_ASSIGN_OR_RETURN(Stream stream, Stream::create(driver));
  return EventNotifier(driver, std::move(stream));
}

Result<std::shared_ptr<const Passing>> EventNotifier::notify(EventHandle* event,
                                                             std::function<void()> ring) {
  while (!notified_.empty() && notified_.front()->is_over()) {
    notified_.pop_front();
  }
  LIGHTCC_RETURN_IF_ERROR(driver_.wait_for_event(stream_.get(), event, 0U));
  std::shared_ptr<Passing> passing =
      notified_.emplace_back(std::make_shared<Passing>(std::move(ring)));
  const auto end = [](void* given) { static_cast<Passing*>(given)->end(); };
  LIGHTCC_RETURN_IF_ERROR(driver_.launch_host_function(stream_.get(), end, passing.get()));
  return std::shared_ptr<const Passing>(std::move(passing));
}

}  // namespace lightcc::cuda
