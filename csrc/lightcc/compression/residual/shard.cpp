#include "lightcc/compression/residual/shard.hpp"

#include <algorithm>

namespace lightcc {
namespace {

constexpr std::size_t kCutBytes = 64;

}  // namespace

ShardRange shard_range(std::size_t numel, std::size_t n, std::size_t j, DataType dtype) {
  const std::size_t cut_elems = kCutBytes / element_size(dtype);
  const std::size_t cuts = numel / cut_elems + (numel % cut_elems != 0 ? 1 : 0);
  const std::size_t each = cuts / n;
  const std::size_t longer = cuts % n;  // The first shards have one cut more.
  const auto boundary = [&](std::size_t shard) {
    return std::min((shard * each + std::min(shard, longer)) * cut_elems, numel);
  };
  return {boundary(j), boundary(j + 1)};
}

}  // namespace lightcc
