#include "lightcc/control/inline_allreduce.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lightcc/control/agreement.hpp"

namespace lightcc {

bool may_be_inline(const Signature& s, std::size_t members, std::size_t max_bytes) {
  if (s.op != OpType::kAllreduce || s.memory != MemoryKind::kHost || s.compression ||
      s.reduce_op == ReduceOp::kAdasum || has_wide_sums(s) || s.group_size > 0) {
    return false;
  }
  const std::uint64_t bytes = byte_count(s);
  return members > 1 && bytes > 0 && bytes <= std::min(max_bytes, kMaxInlineTotal / members);
}

bool InlineInputs::add(std::size_t index, std::size_t members, std::span<const std::byte> input) {
  bytes_.resize(members * input.size());
  has_.resize(members);
  if (std::exchange(has_[index], std::uint8_t{1}) != 0) {
    return false;
  }
  std::memcpy(bytes_.data() + index * input.size(), input.data(), input.size());
  ++count_;
  return true;
}

}  // namespace lightcc
