// Pinned memory that is used again.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

/// In the context that is current. Freeing it waits for the GPU, so it keeps all until its end.
class PinnedPool {
 public:
  explicit PinnedPool(const Driver& driver) : driver_(driver) {}

  /// Memory that comes back when it is released, which any thread may do. The pool outlives it.
  /// Errors: kSystem.
  Result<std::shared_ptr<std::byte>> take(std::size_t bytes) LIGHTCC_EXCLUDES(mutex_) {
    const auto hand_out = [this](std::size_t size, HostMemory memory) {
      auto* const first = static_cast<std::byte*>(memory.get());
      const auto owner = std::make_shared<HostMemory>(std::move(memory));
      return std::shared_ptr<std::byte>(first, [this, size, owner](std::byte* /*memory*/) {
        const MutexLock lock(mutex_);
        free_.emplace(size, std::move(*owner));
      });
    };
    constexpr std::size_t kLarge = std::size_t{2} << 20;  // Multiples of it leave little over.
    const std::size_t size = bytes > kLarge ? (bytes + kLarge - 1) / kLarge * kLarge
                                            : std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    {
      const MutexLock lock(mutex_);
      const auto found = free_.lower_bound(size);
      if (found != free_.end() && found->first <= 2 * size) {
        const auto taken = free_.extract(found);
        return hand_out(taken.key(), std::move(taken.mapped()));
      }
    }
    LIGHTCC_ASSIGN_OR_RETURN(HostMemory memory, allocate_pinned_memory(driver_, size));
    return hand_out(size, std::move(memory));
  }

 private:
  const Driver& driver_;
  Mutex mutex_;
  std::multimap<std::size_t, HostMemory> free_ LIGHTCC_GUARDED_BY(mutex_);  // By size.
};

}  // namespace lightcc::cuda
