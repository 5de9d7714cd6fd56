#include "lightcc/compression/shard.hpp"

#include <algorithm>
#include <cmath>

namespace lightcc {
namespace {

constexpr std::size_t kCutBytes = 64;
constexpr double kWarmupStart = 0.25;

}  // namespace

ShardRange topk_shard(std::size_t numel, std::size_t n, std::size_t j, DataType dtype) {
  const std::size_t cut_elems = kCutBytes / element_size(dtype);
  const std::size_t cuts = numel / cut_elems + (numel % cut_elems != 0 ? 1 : 0);
  const std::size_t each = cuts / n;
  const std::size_t longer = cuts % n;  // The first shards have one cut more.
  const auto boundary = [&](std::size_t shard) {
    return std::min((shard * each + std::min(shard, longer)) * cut_elems, numel);
  };
  return {boundary(j), boundary(j + 1)};
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
