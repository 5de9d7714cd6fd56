#include "lightcc/engine/operation.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lightcc/control/agreement.hpp"

namespace lightcc {

std::span<const std::byte> input_at_hand(const Operation& operation) {
  const Signature& signature = operation.request.signature;
  if (signature.op != OpType::kAllreduce || operation.input.memory.kind != MemoryKind::kHost ||
      operation.ready != nullptr) {
    return {};
  }
  return {static_cast<const std::byte*>(operation.input.data),
          static_cast<std::size_t>(byte_count(signature))};
}

OutputBuffer::OutputBuffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + kAlignment - 1) & ~(kAlignment - 1);
  if (rounded >= bytes) {
    memory_ = {static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)), &std::free};
  }
}

OutputBuffer::OutputBuffer(std::shared_ptr<std::byte> memory, std::size_t bytes, LastStream stream)
    : last_stream_(std::move(stream)), memory_(std::move(memory)), bytes_(bytes) {}

}  // namespace lightcc
