// The entries of a range of a list, block by block.
#pragma once

#include <cstddef>

#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc::detail {

/// Entries [first, end) of one block of a list.
struct BlockPart {
  std::size_t block = 0;
  std::size_t first = 0;
  std::size_t end = 0;
};

/// The first of entries [first, end) of `block` whose index is not below `element`.
inline std::size_t first_entry_from(const TopkListView& list,
                                    std::size_t block,
                                    std::size_t first,
                                    std::size_t end,
                                    std::size_t element) {
  while (first < end) {
    const std::size_t middle = first + (end - first) / 2;
    if (list.index(block, middle) < element) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}

/// Calls `function(BlockPart)` for each block that elements [begin, end) touch, in order.
template <typename Function>
void for_each_block_part(const TopkListView& list,
                         std::size_t begin,
                         std::size_t end,
                         const Function& function) {
  std::size_t entry = 0;
  for (std::size_t block = 0; block < list.num_blocks; ++block) {
    const std::size_t entries_end = entry + list.block_count(block);
    const std::size_t block_begin = block * kTopkBlockElems;  // Where its phase is 0.
    const bool is_touched = begin < end && begin + list.phase < block_begin + kTopkBlockElems &&
                            end + list.phase > block_begin;
    if (is_touched) {
      const std::size_t first = first_entry_from(list, block, entry, entries_end, begin);
      function(BlockPart{.block = block,
                         .first = first,
                         .end = first_entry_from(list, block, first, entries_end, end)});
    }
    entry = entries_end;
  }
}

}  // namespace lightcc::detail
