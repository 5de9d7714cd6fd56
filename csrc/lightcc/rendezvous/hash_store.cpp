#include "lightcc/rendezvous/hash_store.hpp"

#include <utility>

#include "lightcc/base/mutex.hpp"
#include "lightcc/rendezvous/store_map.hpp"

namespace lightcc {
namespace {

class HashStore final : public Store {
 public:
  Status set(const std::string& key, std::vector<std::byte> value, TimePoint) override {
    const MutexLock lock(mutex_);
    LIGHTCC_RETURN_IF_ERROR(map_.set(key, std::move(value)));
    changed_.notify_all();
    return {};
  }

  Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) override {
    const MutexLock lock(mutex_);
    while (true) {
      if (const auto value = map_.find(key)) {
        return *value;
      }
      const TimePoint now = Clock::system().now();
      if (now >= deadline) {
        return make_error(ErrorCode::kTimeout,
                          "key '%s' was not set in the store before the deadline",
                          key.c_str());
      }
      changed_.wait_for(mutex_, deadline - now);
    }
  }

  Status remove_prefix(const std::string& prefix, TimePoint) override {
    const MutexLock lock(mutex_);
    map_.remove_prefix(prefix);
    return {};
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  StoreMap map_ LIGHTCC_GUARDED_BY(mutex_){kDefaultStoreCapacityBytes};
};

}  // namespace

std::shared_ptr<Store> make_hash_store() {
  return std::make_shared<HashStore>();
}

}  // namespace lightcc
