// Parts of lists as lists of their own: slices, since a part keeps the blocks of the whole.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lightcc/compression/topk/list_parts.hpp"
#include "lightcc/compression/topk/list_writer.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc {
namespace {

using detail::BlockPart;
using detail::for_each_block_part;

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
