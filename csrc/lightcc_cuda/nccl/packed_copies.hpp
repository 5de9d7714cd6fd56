// Copies between the tensors of a bucket and memory of the GPU where they lie one after another.
#pragma once

#include <cstddef>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"

#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"

namespace lightcc::cuda {

/// The tensors of a bucket, none of which is empty.
struct PackedTensors {
  std::vector<TensorSpan> spans;
  std::size_t element_bytes = 4;
};

inline std::size_t elements_of(const std::vector<TensorSpan>& spans) {
  std::size_t elements = 0;
  for (const TensorSpan& span : spans) {
    elements += span.count;
  }
  return elements;
}

/// What copies are made with. All of it outlives the call.
struct CopySite {
  const Driver& driver;
  const KernelTable* kernels;  ///< Null: tensors are copied one by one.
  StreamHandle* stream;
};

// In the order of the stream. By one launch for up to kMaxBucketRows tensors, or by a copy for each
// where there are no kernels, it is about few tensors, or one of them is null. Errors: kSystem.

/// Zeros for an input that is null.
Status pack_tensors(const PackedTensors& tensors, std::byte* packed, const CopySite& site);
/// Leaves out an output that is null.
Status unpack_tensors(const PackedTensors& tensors, const std::byte* packed, const CopySite& site);

}  // namespace lightcc::cuda
