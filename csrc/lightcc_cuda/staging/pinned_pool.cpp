#include "lightcc_cuda/staging/pinned_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace lightcc::cuda {

Result<std::shared_ptr<std::byte>> PinnedPool::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  const auto hand_out = [this, size](HostMemory memory) {
    auto* const first = static_cast<std::byte*>(memory.get());
    const auto owner = std::make_shared<HostMemory>(std::move(memory));
    return std::shared_ptr<std::byte>(first, [this, size, owner](std::byte* /*memory*/) {
      const MutexLock lock(mutex_);
      free_[size].push_back(std::move(*owner));
    });
  };
  {
    const MutexLock lock(mutex_);
    std::vector<HostMemory>& free = free_[size];
    if (!free.empty()) {
      HostMemory memory = std::move(free.back());
      free.pop_back();
      return hand_out(std::move(memory));
    }
  }
  LIGHTCC_ASSIGN_OR_RETURN(HostMemory memory, allocate_pinned_memory(driver_, size));
  return hand_out(std::move(memory));
}

}  // namespace lightcc::cuda
