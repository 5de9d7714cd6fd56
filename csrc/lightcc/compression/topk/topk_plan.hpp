// How many elements a member sends, and how the blocks of a grid exchange them: pure functions of
// what all ranks know, so that all come to the same answers without a word.
//
// Per member and element of its shard, with m blocks, e bytes for a list's entry, b for an element
// and the share r that is sent, a member receives
//
//   lists   (m - 1) r e               everybody gets everybody's list and merges them all
//   pieces  (m - 1) / m (r e + b)     everybody merges one piece of all lists, and the merged
//                                     pieces are gathered as they lie (SparCML's split exchange,
//                                     Renggli et al., 2019)
//   dense   2 (m - 1) / m b           everything is sent, and the residual with it
//
// So lists win while r is small, pieces between many blocks (above 68 at 1% of float32), and dense
// where nearly everything would be sent, a ratio of 1 above all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/export.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc {

enum class TopkExchange : std::uint8_t { kLists, kPieces, kDense };

struct TopkPlan {
  TopkExchange exchange = TopkExchange::kLists;
  /// kLists: members of a block pass all lists on to each other, and each merges everything; else
  /// each merges its own shard, and they pass that on.
  bool gather_lists = false;
  bool operator==(const TopkPlan&) const = default;
};

/// For a tensor of `elements` elements, cut into `members` shards, of which `blocks` blocks send
/// the share `ratio` each. The cheapest by the table above; among equals dense, then lists.
TopkPlan plan_topk(std::size_t elements,
                   std::size_t members,
                   std::size_t blocks,
                   double ratio,
                   const TopkFormat& format);

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
