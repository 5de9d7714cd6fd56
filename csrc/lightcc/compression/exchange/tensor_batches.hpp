// Which tensors of a bucket are exchanged together, and which go through their kernels at once:
// pure functions of their sizes, so that all ranks cut alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lightcc {

/// So many elements make what an exchange costs by itself small beside its data. They are few
/// enough that a bucket of 64 MiB still has parts which are exchanged while others are compressed.
inline constexpr std::size_t kExchangeElements = std::size_t{1} << 20;

/// So many elements give a GPU enough to do at a time. While they are on the network, those that
/// follow are compressed. A guess until a GPU has shown what is best.
inline constexpr std::size_t kKernelElements = std::size_t{1} << 24;

/// Tensors [first, end) of a bucket, or batches.
struct TensorBatch {
  std::size_t first = 0;
  std::size_t end = 0;
  bool operator==(const TensorBatch&) const = default;
};

/// The batches of tensors of so many elements, one after another. Each ends with the tensor that
/// brings it to `enough` (> 0) elements, or is the last one.
std::vector<TensorBatch> cut_for_exchange(std::span<const std::size_t> elements,
                                          std::size_t enough = kExchangeElements);

/// For kernels: of so many batches or tensors of `elements` elements, for each those among
/// which it is. Together they have at most kKernelElements, or are one. They are at most
/// `max_batch` (> 0).
std::vector<TensorBatch> cut_for_kernels(std::span<const std::size_t> elements,
                                         std::size_t max_batch = SIZE_MAX);

}  // namespace lightcc
