// Parts of lists as lists of their own: slices, since a part keeps the blocks of the whole.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lightcc/compression/topk/list_writer.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc {
namespace {

/// Entries [first, end) of one block of a list.
struct BlockPart {
  std::size_t block = 0;
  std::size_t first = 0;
  std::size_t end = 0;
};

/// The first of entries [first, end) of `block` whose index is not below `element`.
std::size_t first_entry_from(const TopkListView& list,
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

std::size_t count_entries(const TopkListView& list, std::size_t begin, std::size_t end) {
  std::size_t count = 0;
  for_each_block_part(
      list, begin, end, [&](const BlockPart& part) { count += part.end - part.first; });
  return count;
}

}  // namespace

std::size_t list_range_bytes(const TopkListView& list, std::size_t begin, std::size_t end) {
  const std::size_t phase = (list.phase + begin) % kTopkBlockElems;
  return list_bytes(end - begin, count_entries(list, begin, end), list.format, phase);
}

Result<std::size_t> write_list_range(const TopkListView& list,
                                     std::size_t begin,
                                     std::size_t end,
                                     std::span<std::byte> out) {
  if (begin > end || end > list.elements) {
    return make_error(ErrorCode::kInvalidArgument,
                      "elements %zu to %zu of a top-k list of %zu",
                      begin,
                      end,
                      list.elements);
  }
  const std::size_t count = count_entries(list, begin, end);
  const std::size_t phase = (list.phase + begin) % kTopkBlockElems;
  const std::size_t needed = list_bytes(end - begin, count, list.format, phase);
  if (out.size() < needed) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a part of a top-k list takes %zu bytes, there is room for %zu",
                      needed,
                      out.size());
  }
  detail::ListWriter writer(out, end - begin, count, list.format, phase);
  if (list.non_finite) {
    return writer.finish_non_finite();
  }
  const std::size_t value_bytes = list.format.value_bytes();
  for_each_block_part(list, begin, end, [&](const BlockPart& part) {
    const std::size_t entries = part.end - part.first;
    std::memcpy(writer.offsets(),
                list.offsets + part.first * sizeof(std::uint16_t),
                entries * sizeof(std::uint16_t));
    std::memcpy(writer.values(), list.values + part.first * value_bytes, entries * value_bytes);
    writer.finish_block(entries, list.block_exponent(part.block));
  });
  return writer.finish();
}

}  // namespace lightcc
