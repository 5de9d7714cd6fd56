#include "lightcc_cuda/nccl/packing.hpp"

#include <algorithm>

namespace lightcc::cuda {
namespace {

// What is larger is not copied into a buffer.
constexpr std::size_t kMaxPackedBytes = std::size_t{64} << 20;

}  // namespace

void Packing::add(const std::byte* tensor, std::size_t offset, std::size_t bytes) {
  is_whole_ = is_whole_ && tensor != nullptr;
  if (tensor != nullptr) {
    parts_.push_back({.tensor = gpu_address(tensor), .offset = offset, .bytes = bytes});
  }
}

Result<std::byte*> Packing::pack(const NcclCalls& calls, std::size_t bytes) const {
  LIGHTCC_ASSIGN_OR_RETURN(std::byte* const buffer,
                           is_whole_ ? calls.scratch(bytes) : calls.zeros(bytes));
  LIGHTCC_RETURN_IF_ERROR(calls.copy_bucket(buffer, parts_, Copying::kPack));
  return buffer;
}

Run first_run(Run tensors, std::size_t element) {
  std::size_t bytes = 0;
  std::size_t count = 0;
  for (; count < tensors.size(); ++count) {
    bytes += padded(tensors[count].count * element);
    if (count > 0 && bytes > kMaxPackedBytes) {
      break;
    }
  }
  return tensors.first(count);
}

Pieces cut(const std::vector<TensorSpan>& tensors,
           const std::vector<std::size_t>& counts,
           std::size_t element) {
  Pieces pieces{.list = {}, .element = element, .members = counts.size()};
  std::size_t tensor = 0;
  std::size_t at = 0;  // In the tensor.
  std::size_t total = 0;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    for (std::size_t left = counts[member]; left > 0 && tensor < tensors.size();) {
      const TensorSpan& span = tensors[tensor];
      const std::size_t count = std::min(left, span.count - at);
      if (count > 0) {
        pieces.list.push_back({.in = span.in == nullptr ? nullptr : span.in + at * element,
                               .out = span.out == nullptr ? nullptr : span.out + at * element,
                               .count = count,
                               .member = member,
                               .begin = counts[member] - left});
      }
      left -= count;
      at += count;
      if (at == span.count) {
        ++tensor;
        at = 0;
      }
    }
    total += counts[member];
    pieces.max_count = std::max(pieces.max_count, counts[member]);
  }
  const std::size_t slots = pieces.max_count * counts.size();
  pieces.is_row = tensors.size() == 1 && total > 0 && slots == total;
  pieces.is_packed = !pieces.is_row && slots < 2 * total && slots * element <= kMaxPackedBytes;
  return pieces;
}

}  // namespace lightcc::cuda
