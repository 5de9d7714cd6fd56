// How the blocks of a grid exchange what they compressed: a pure function of what all ranks know,
// so that all come to the same answer without a word.
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

#include "lightcc/compression/topk_list.hpp"

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

}  // namespace lightcc
