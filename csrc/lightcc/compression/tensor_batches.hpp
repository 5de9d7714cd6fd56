// Which tensors of a bucket go through their kernels at once: a pure function of their sizes, so
// that all members of a block cut alike.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lightcc {

/// So many elements give a GPU enough to do at a time. While they are on the network, those that
/// follow are compressed. A guess until a GPU has shown what is best.
inline constexpr std::size_t kBatchElements = std::size_t{1} << 24;

/// Tensors [first, end) of a bucket.
struct TensorBatch {
  std::size_t first = 0;
  std::size_t end = 0;
  bool operator==(const TensorBatch&) const = default;
};

/// The batch of each tensor, of whose elements there are `elements`. A batch has at most
/// kBatchElements of them, or one tensor.
std::vector<TensorBatch> cut_in_batches(std::span<const std::size_t> elements);
/// The same where each tensor is one.
std::vector<TensorBatch> cut_singly(std::size_t tensors);

}  // namespace lightcc
