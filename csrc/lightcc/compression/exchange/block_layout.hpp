// What several tensors have for each block, or from each, as an operation between blocks wants it:
// block after block, and in each tensor after tensor.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"

namespace lightcc {

struct BlockLayout {
  SharedBuffer memory;
  std::vector<std::size_t> bytes;  ///< Of each block.

  std::byte* start_of(std::size_t block) const {
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(block);
    return memory.get() + std::accumulate(bytes.begin(), end, std::size_t{0});
  }
};

/// `bytes_of(item, block)` says how many bytes there are. `tell(item, block, at, memory)` is then
/// told where in the layout's memory. It returns a Status.
template <typename Item, typename BytesOf, typename Tell>
Result<BlockLayout> lay_out(const std::vector<Item*>& items,
                            std::size_t blocks,
                            const BytesOf& bytes_of,
                            const Tell& tell) {
  BlockLayout layout{.memory = nullptr, .bytes = std::vector<std::size_t>(blocks, 0)};
  for (std::size_t block = 0; block < blocks; ++block) {
    for (const Item* const item : items) {
      layout.bytes[block] += bytes_of(*item, block);
    }
  }
  layout.memory = make_compressed_buffer(
      std::accumulate(layout.bytes.begin(), layout.bytes.end(), std::size_t{0}));
  std::byte* next = layout.memory.get();
  for (std::size_t block = 0; block < blocks; ++block) {
    for (Item* const item : items) {
      LIGHTCC_RETURN_IF_ERROR(tell(*item, block, next, layout.memory));
      next += bytes_of(*item, block);
    }
  }
  return layout;
}

}  // namespace lightcc
