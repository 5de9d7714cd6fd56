// Which elements of a tensor a member compresses, how many of them it sends, and how that number
// falls during warm-up: pure functions, so that all ranks come to the same answers and nothing but
// the tensor decides them (not the bucket it travels in, not the fusion strategy).
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/export.hpp"
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
ShardRange topk_shard(std::size_t numel, std::size_t n, std::size_t j, DataType dtype);

/// How many elements of a shard travel: ratio * shard_numel, rounded up; at least 1 for a shard
/// that has any, at most all. A ratio that is not above 0 counts as 0, one that is not below 1
/// as 1.
LIGHTCC_EXPORT std::size_t topk_k(std::size_t shard_numel, double ratio);

/// The most entries that a list for `k` may have: min(ceil(1.25 k), shard_numel).
LIGHTCC_EXPORT std::size_t topk_capacity(std::size_t k, std::size_t shard_numel);

/// The density of step `step` (from 0): it falls exponentially from 25% at step 0 to `ratio` at
/// step `warmup_steps` and stays there. No warm-up, or a ratio of 25% and above: `ratio` at once.
double topk_warmup_ratio(std::uint64_t step, std::uint64_t warmup_steps, double ratio);

}  // namespace lightcc
