// Copies between many tensors and one bucket, by the kernels of bucket.cu.
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"

namespace lightcc::cuda {

/// A tensor of the GPU, and its place in a bucket.
struct BucketPart {
  Address tensor = 0;  ///< 0: there is none, and its place in the bucket stays as it is.
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

enum class Copying : std::uint8_t { kPack, kUnpack };

/// Copies every tensor to its place in `bucket`, or from there. `parts` ascend by their offsets and
/// do not overlap; what lies between them stays as it is. Errors: kSystem.
Status copy_bucket(const Driver& driver,
                   const KernelTable& kernels,
                   Address bucket,
                   std::span<const BucketPart> parts,
                   Copying direction,
                   StreamHandle* stream);

}  // namespace lightcc::cuda
