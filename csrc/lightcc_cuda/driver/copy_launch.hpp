// The launch of bucket.cu that copies between many tensors and one bucket.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/bucket.hpp"

namespace lightcc::cuda {

/// Copies elements of `element_bytes` bytes: 1, 2, 4 or 8. Errors: kSystem.
inline Status launch_copies(const Driver& driver,
                            const KernelTable& kernels,
                            std::size_t element_bytes,
                            StreamHandle* stream,
                            const BucketArguments& arguments) {
  // More blocks than all GPUs run at once have nothing to do sooner.
  constexpr u64 kMaxBlocks = 1024;
  const u64 tiles = (arguments.total + kBucketTile - 1) / kBucketTile;
  return launch(driver,
                kernels.find("lightcc_copy_" + std::to_string(element_bytes)),
                static_cast<unsigned>(std::min(tiles, kMaxBlocks)),
                kBucketThreads,
                stream,
                arguments);
}

}  // namespace lightcc::cuda
