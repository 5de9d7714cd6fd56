// Which elements of a tensor a member compresses: a pure function, so that all ranks come to the
// same answer and nothing but the tensor decides it (not the bucket it travels in, not the fusion
// strategy).
#pragma once

#include <cstddef>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Elements [begin, end) of a tensor.
struct ShardRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size_elems() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};

/// Shard `j` of `n` of a tensor of `numel` elements: consecutive shards are adjacent, together they
/// are the tensor, each begins at a multiple of 64 bytes, and the sizes differ by at most 64 bytes
/// (before the last shard is clipped to the tensor). Tiny tensors leave some shards empty.
/// n >= 1, 0 <= j < n; `dtype` has elements of 1, 2, 4 or 8 bytes.
ShardRange shard_range(std::size_t numel, std::size_t n, std::size_t j, DataType dtype);

}  // namespace lightcc
