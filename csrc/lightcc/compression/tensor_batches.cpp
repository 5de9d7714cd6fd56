#include "lightcc/compression/tensor_batches.hpp"

namespace lightcc {

std::vector<TensorBatch> cut_in_batches(std::span<const std::size_t> elements) {
  std::vector<TensorBatch> batches;
  batches.reserve(elements.size());
  while (batches.size() < elements.size()) {
    TensorBatch batch{.first = batches.size(), .end = batches.size()};
    std::size_t left = kBatchElements;
    do {
      left -= elements[batch.end] < left ? elements[batch.end] : left;
      ++batch.end;
    } while (batch.end < elements.size() && elements[batch.end] <= left);
    batches.resize(batch.end, batch);
  }
  return batches;
}

std::vector<TensorBatch> cut_singly(std::size_t tensors) {
  std::vector<TensorBatch> batches;
  batches.reserve(tensors);
  for (std::size_t i = 0; i < tensors; ++i) {
    batches.push_back({.first = i, .end = i + 1});
  }
  return batches;
}

}  // namespace lightcc
