#include "lightcc/compression/topk_exchange.hpp"

#include "lightcc/base/types.hpp"
#include "lightcc/compression/shard.hpp"

namespace lightcc {
namespace {

constexpr double kOffsetBytes = 2.0;

}  // namespace

TopkPlan plan_topk(std::size_t elements,
                   std::size_t members,
                   std::size_t blocks,
                   double ratio,
                   const TopkFormat& format) {
  const std::size_t shard = topk_shard(elements, members, 0, format.dtype).size_elems();
  const double dense_bytes =
      static_cast<double>(shard) * static_cast<double>(element_size(format.dtype));
  const double entry_bytes = kOffsetBytes + static_cast<double>(format.value_bytes());
  const double sent_bytes = static_cast<double>(topk_k(shard, ratio)) * entry_bytes;
  const auto others = static_cast<double>(blocks - 1);
  const double part = others / static_cast<double>(blocks);

  const double lists = others * sent_bytes;
  const double pieces = part * (sent_bytes + dense_bytes);
  const double dense = 2.0 * part * dense_bytes;
  if (dense <= lists && dense <= pieces) {
    return {.exchange = TopkExchange::kDense};
  }
  if (pieces < lists) {
    return {.exchange = TopkExchange::kPieces};
  }
  // Through memory a shard's dense bytes are written and read once; lists are, and then merged by
  // every member.
  const bool few = 2.0 * static_cast<double>(blocks) * sent_bytes <= dense_bytes;
  return {.exchange = TopkExchange::kLists, .gather_lists = few};
}

}  // namespace lightcc
