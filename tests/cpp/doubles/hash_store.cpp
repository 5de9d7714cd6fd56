#include "doubles/hash_store.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/rendezvous/round_table.hpp"
#include "lightcc/rendezvous/store_map.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc {
namespace {

Status not_there_in_time(const std::string& key) {
  return make_error(
      ErrorCode::kTimeout, "key '%s' was not set in the store before the deadline", key.c_str());
}

class HashStore final : public Store, public std::enable_shared_from_this<HashStore> {
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
        return not_there_in_time(key);
      }
      changed_.wait_for(mutex_, deadline - now);
    }
  }

  Status remove_prefix(const std::string& prefix, TimePoint) override {
    const MutexLock lock(mutex_);
    map_.remove_prefix(prefix);
    changed_.notify_all();
    return {};
  }

  Result<std::optional<std::vector<std::byte>>> compare_and_set(
      const std::string& key,
      std::optional<std::vector<std::byte>> expected,
      std::vector<std::byte> desired,
      TimePoint) override {
    const MutexLock lock(mutex_);
    LIGHTCC_RETURN_IF_ERROR(check_store_compare(expected.has_value() ? expected->size() : 0));
    LIGHTCC_ASSIGN_OR_RETURN(const StoreMap::Value value,
                             map_.compare_and_set(key, expected, std::move(desired)));
    changed_.notify_all();
    return value == nullptr ? std::nullopt : std::optional<std::vector<std::byte>>(*value);
  }

  Result<StoreView> watch(const std::string& prefix,
                          std::uint64_t known_state,
                          TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(prefix));
    const MutexLock lock(mutex_);
    while (map_.state(prefix) == known_state) {
      const TimePoint now = Clock::system().now();
      if (now >= deadline) {
        return make_error(ErrorCode::kTimeout, "nothing below '%s' changed", prefix.c_str());
      }
      changed_.wait_for(mutex_, deadline - now);
    }
    return map_.view(prefix);
  }

  Status fail(const std::string& prefix, const Status& why, TimePoint) override {
    const MutexLock lock(mutex_);
    fail_locked(prefix, why);
    return {};
  }

  Result<std::unique_ptr<RendezvousRound>> join(const std::string& prefix,
                                                const Status& last_will,
                                                TimePoint deadline) override;

 private:
  class HashRound;

  RoundTable::Member next_member() {
    const MutexLock lock(mutex_);
    return next_member_++;
  }

  void fail_locked(const std::string& prefix, const Status& why) LIGHTCC_REQUIRES(mutex_) {
    if (!rounds_.fail(prefix, std::make_shared<const Bytes>(encode_failure(why)))) {
      return;
    }
    for (const RoundTable::Member member : rounds_.members(prefix)) {
      (void)::eventfd_write(bells_[member], 1);  // Cannot fail: the counter is far from full.
    }
    changed_.notify_all();
  }

  Status failure_locked(const std::string& prefix) const LIGHTCC_REQUIRES(mutex_) {
    const auto failure = rounds_.failure(prefix);
    return failure == nullptr ? Status() : decode_failure(*failure);
  }

  Mutex mutex_;
  CondVar changed_;
  StoreMap map_ LIGHTCC_GUARDED_BY(mutex_){kDefaultStoreCapacityBytes};
  RoundTable rounds_ LIGHTCC_GUARDED_BY(mutex_);
  std::map<RoundTable::Member, int> bells_ LIGHTCC_GUARDED_BY(mutex_);
  RoundTable::Member next_member_ LIGHTCC_GUARDED_BY(mutex_) = 0;
};

class HashStore::HashRound final : public RendezvousRound {
 public:
  HashRound(std::shared_ptr<HashStore> store, std::string prefix, Status last_will, UniqueFd bell)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        last_will_(std::move(last_will)),
        bell_(std::move(bell)),
        member_(store_->next_member()) {
    const MutexLock lock(store_->mutex_);
    store_->rounds_.join(prefix_, member_);
    store_->bells_[member_] = bell_.get();
    if (store_->rounds_.failure(prefix_) != nullptr) {
      (void)::eventfd_write(bell_.get(), 1);
    }
  }
  HashRound(const HashRound&) = delete;
  HashRound& operator=(const HashRound&) = delete;
  ~HashRound() override {
    const MutexLock lock(store_->mutex_);
    if (!has_left_) {
      store_->fail_locked(prefix_, last_will_);
      leave_locked();
    }
  }

  Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(failure({}));
    return store_->set(key, std::move(value), deadline);
  }

  Result<std::vector<std::byte>> gather(const std::string& key,
                                        std::uint32_t index,
                                        std::uint32_t count,
                                        std::vector<std::byte> share,
                                        TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(failure({}));
    LIGHTCC_RETURN_IF_ERROR(check_store_share(share.size()));
    {
      const MutexLock lock(store_->mutex_);
      LIGHTCC_RETURN_IF_ERROR(store_->map_.add_share(key, index, count, std::move(share)));
      store_->changed_.notify_all();
    }
    return get(key, deadline);
  }

  Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) override {
    const MutexLock lock(store_->mutex_);
    while (true) {
      LIGHTCC_RETURN_IF_ERROR(store_->failure_locked(prefix_));
      if (const auto value = store_->map_.find(key)) {
        return *value;
      }
      const TimePoint now = Clock::system().now();
      if (now >= deadline) {
        return not_there_in_time(key);
      }
      store_->changed_.wait_for(store_->mutex_, deadline - now);
    }
  }

  int event_fd() const override { return bell_.get(); }

  Status failure(TimePoint deadline) override {
    const MutexLock lock(store_->mutex_);
    while (true) {
      LIGHTCC_RETURN_IF_ERROR(store_->failure_locked(prefix_));
      const TimePoint now = Clock::system().now();
      if (now >= deadline) {
        return {};
      }
      store_->changed_.wait_for(store_->mutex_, deadline - now);
    }
  }

  Status fail(const Status& why, TimePoint) override {
    const MutexLock lock(store_->mutex_);
    store_->fail_locked(prefix_, why);
    return store_->failure_locked(prefix_);
  }

  Status leave(bool last, TimePoint deadline) override {
    const MutexLock lock(store_->mutex_);
    while (true) {
      LIGHTCC_RETURN_IF_ERROR(store_->failure_locked(prefix_));
      if (!last || store_->rounds_.members(prefix_).size() == 1) {
        leave_locked();
        return {};
      }
      const TimePoint now = Clock::system().now();
      if (now >= deadline) {
        return make_error(ErrorCode::kTimeout, "some have not left '%s'", prefix_.c_str());
      }
      store_->changed_.wait_for(store_->mutex_, deadline - now);
    }
  }

 private:
  void leave_locked() LIGHTCC_REQUIRES(store_->mutex_) {
    has_left_ = true;
    store_->bells_.erase(member_);
    if (store_->rounds_.leave(prefix_, member_)) {
      store_->map_.remove_prefix(prefix_);
    }
    store_->changed_.notify_all();
  }

  const std::shared_ptr<HashStore> store_;
  const std::string prefix_;
  const Status last_will_;
  const UniqueFd bell_;
  const RoundTable::Member member_;
  bool has_left_ = false;
};

Result<std::unique_ptr<RendezvousRound>> HashStore::join(const std::string& prefix,
                                                         const Status& last_will,
                                                         TimePoint) {
  LIGHTCC_RETURN_IF_ERROR(check_store_key(prefix));
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make an event descriptor");
  }
  return std::unique_ptr<RendezvousRound>(
      std::make_unique<HashRound>(shared_from_this(), prefix, last_will, std::move(bell)));
}

}  // namespace

std::shared_ptr<Store> make_hash_store() {
  return std::make_shared<HashStore>();
}

}  // namespace lightcc
