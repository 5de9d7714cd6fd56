// Sessions that came to a listener and wait to be accepted.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/channel.hpp"
#include "sync/mutex.hpp"

namespace harp {

/// Thread: any. Connections are rare, so a mutex will do.
class Backlog {
 public:
  /// The oldest session that nobody has taken; null: none.
  std::shared_ptr<Channel> take() {
    if (count_.load(std::memory_order_acquire) == 0) {
      return nullptr;
    }
    const MutexLock lock(mutex_);
    if (channels_.empty()) {
      return nullptr;
    }
    auto channel = std::move(channels_.front());
    channels_.pop_front();
    count_.store(channels_.size(), std::memory_order_release);
    return channel;
  }
  void add(std::shared_ptr<Channel> channel) {
    const MutexLock lock(mutex_);
    channels_.push_back(std::move(channel));
    count_.store(channels_.size(), std::memory_order_release);
  }

 private:
  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::deque<std::shared_ptr<Channel>> channels_ HARP_GUARDED_BY(mutex_);
};

}  // namespace harp
