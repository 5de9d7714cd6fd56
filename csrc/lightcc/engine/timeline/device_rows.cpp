#include "lightcc/engine/timeline/device_rows.hpp"

#include <set>
#include <utility>

#include "lightcc/base/log.hpp"

namespace lightcc {
namespace {

thread_local const std::shared_ptr<DeviceTrace>* current_trace = nullptr;

class BucketTrace final : public DeviceTrace {
 public:
  BucketTrace(std::shared_ptr<DeviceRows> rows,
              TracedBucket bucket,
              std::vector<std::shared_ptr<ReadyEvent>> inputs)
      : rows_(std::move(rows)),
        bucket_(std::make_shared<const TracedBucket>(std::move(bucket))),
        inputs_(std::move(inputs)) {}

  bool is_recording() const override { return rows_->is_open(); }
  void add(DeviceSpan span) override { rows_->add({.span = std::move(span), .bucket = bucket_}); }
  std::vector<std::shared_ptr<ReadyEvent>> take_inputs(std::int32_t device) override {
    const MutexLock lock(mutex_);
    return taken_.insert(device).second ? inputs_ : std::vector<std::shared_ptr<ReadyEvent>>();
  }
  void warn(const std::string& text) override {
    LIGHTCC_LOG(LogLevel::kWarning, "%s", text.c_str());
  }

 private:
  const std::shared_ptr<DeviceRows> rows_;
  const std::shared_ptr<const TracedBucket> bucket_;
  const std::vector<std::shared_ptr<ReadyEvent>> inputs_;
  Mutex mutex_;
  std::set<std::int32_t> taken_ LIGHTCC_GUARDED_BY(mutex_);  // Devices.
};

}  // namespace

std::shared_ptr<DeviceTrace> current_device_trace() {
  return current_trace == nullptr ? nullptr : *current_trace;
}

void DeviceTraceScope::set(const std::shared_ptr<DeviceTrace>* trace) {
  current_trace = trace;
}

void DeviceRows::add(DeviceRecord record) {
  const MutexLock lock(mutex_);
  if (!is_open()) {
    return;
  }
  if (queued_.records.size() == capacity_) {
    ++queued_.lost;
    return;
  }
  queued_.records.push_back(std::move(record));
}

DeviceRows::Taken DeviceRows::take() {
  const MutexLock lock(mutex_);
  return std::exchange(queued_, {});
}

void DeviceRows::close() {
  const MutexLock lock(mutex_);
  is_open_.store(false, std::memory_order_relaxed);
}

std::shared_ptr<DeviceTrace> make_device_trace(std::shared_ptr<DeviceRows> rows,
                                               TracedBucket bucket,
                                               std::vector<std::shared_ptr<ReadyEvent>> inputs) {
  return std::make_shared<BucketTrace>(std::move(rows), std::move(bucket), std::move(inputs));
}

}  // namespace lightcc
