// Pinned memory that is used again.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

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
  Result<std::shared_ptr<std::byte>> take(std::size_t bytes) LIGHTCC_EXCLUDES(mutex_);

 private:
  const Driver& driver_;
  Mutex mutex_;
  std::multimap<std::size_t, HostMemory> free_ LIGHTCC_GUARDED_BY(mutex_);  // By size.
};

}  // namespace lightcc::cuda
