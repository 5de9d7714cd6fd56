#include "lightcc/collectives/shm/shm_layout.hpp"

#include <algorithm>
#include <cstddef>

#include "lightcc/collectives/shm/shm_group.hpp"

namespace lightcc {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMaxChunk = std::size_t{1} << 30;
constexpr int kMaxDepth = 64;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

ShmLayout::ShmLayout(int members, const ShmGroupOptions& options)
    : size(static_cast<std::size_t>(std::max(members, 1))),
      depth(static_cast<std::size_t>(std::clamp(options.depth, 1, kMaxDepth))),
      slot_bytes(
          round_up(std::max<std::size_t>(std::min(options.chunk_bytes, kMaxChunk) / size, 1), 64)),
      scatter_base_(round_up((size + size * size) * kShmLine, kPage)),
      result_base_(round_up(scatter_base_ + size * (size - 1) * depth * slot_bytes, kPage)),
      total_bytes_(round_up(result_slot(size, 0), kPage)) {}

}  // namespace lightcc
