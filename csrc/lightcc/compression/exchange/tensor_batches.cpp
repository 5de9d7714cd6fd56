#include "lightcc/compression/exchange/tensor_batches.hpp"

#include <algorithm>

namespace lightcc {

std::vector<TensorBatch> cut_for_exchange(std::span<const std::size_t> elements,
                                          std::size_t enough) {
  std::vector<TensorBatch> batches;
  std::size_t missing = 0;  // Elements that the last batch lacks.
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (missing == 0) {
      batches.push_back({.first = i, .end = i});
      missing = enough;
    }
    batches.back().end = i + 1;
    missing -= std::min(elements[i], missing);
  }
  return batches;
}

std::vector<TensorBatch> cut_for_kernels(std::span<const std::size_t> elements,
                                         std::size_t max_batch) {
  std::vector<TensorBatch> batches;
  batches.reserve(elements.size());
  while (batches.size() < elements.size()) {
    TensorBatch batch{.first = batches.size(), .end = batches.size()};
    std::size_t left = kKernelElements;
    do {
      left -= elements[batch.end] < left ? elements[batch.end] : left;
      ++batch.end;
    } while (batch.end < elements.size() && elements[batch.end] <= left &&
             batch.end - batch.first < max_batch);
    batches.resize(batch.end, batch);
  }
  return batches;
}

}  // namespace lightcc
