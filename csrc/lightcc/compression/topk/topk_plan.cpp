#include "lightcc/compression/topk/topk_plan.hpp"

#include <algorithm>
#include <cmath>

#include "lightcc/base/types.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {
namespace {

constexpr double kWarmupStart = 0.25;

}  // namespace

TopkPlan plan_topk(std::size_t elements,
                   std::size_t members,
                   std::size_t blocks,
                   double ratio,
                   const TopkFormat& format) {
  const std::size_t shard = shard_range(elements, members, 0, format.dtype).size_elems();
  const double dense_bytes =
      static_cast<double>(shard) * static_cast<double>(element_size(format.dtype));
  const double sent_bytes = static_cast<double>(topk_k(shard, ratio)) * format.entry_bytes();
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

std::size_t topk_k(std::size_t shard_numel, double ratio) {
  if (shard_numel == 0) {
    return 0;
  }
  if (!(ratio > 0.0)) {
    return 1;
  }
  if (ratio >= 1.0) {
    return shard_numel;
  }
  // Just under the product: 7% of 100 is 7, although 0.07 * 100 is a little more.
  const double wanted = std::ceil(ratio * static_cast<double>(shard_numel) * (1.0 - 0x1p-40));
  return std::clamp<std::size_t>(static_cast<std::size_t>(wanted), 1, shard_numel);
}

std::size_t topk_capacity(std::size_t k, std::size_t shard_numel) {
  return std::min(k + k / 4 + (k % 4 != 0 ? 1 : 0), shard_numel);
}

double topk_warmup_ratio(std::uint64_t step, std::uint64_t warmup_steps, double ratio) {
  if (step >= warmup_steps || !(ratio < kWarmupStart) || !(ratio > 0.0)) {
    return ratio;
  }
  const double done = static_cast<double>(step) / static_cast<double>(warmup_steps);
  // Rounded to float32: pow() may differ in the last bit between the hosts' libraries.
  return static_cast<float>(kWarmupStart * std::pow(ratio / kWarmupStart, done));
}

}  // namespace lightcc
