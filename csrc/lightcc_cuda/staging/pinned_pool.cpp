#include "lightcc_cuda/staging/pinned_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace lightcc::cuda {

Result<std::shared_ptr<std::byte>> PinnedPool::take(std::size_t bytes) {
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

}  // namespace lightcc::cuda
