// Sums of TopkSite: the lists of a table of tensors go to the GPU together, and are merged by two
// launches.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "lightcc/compression/topk/list_layout.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/topk_merge_rows.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {
namespace {

/// The bytes of a list that was checked.
std::span<const std::byte> bytes_of(const TopkListView& list) {
  const std::byte* const first = list.counts - lightcc::detail::ListLayout(0, 0, {}).counts;
  const lightcc::detail::ListLayout layout(list.num_blocks, list.count, list.format);
  return {first, layout.end};
}

/// A list that makes all elements NaN.
std::vector<std::byte> flagged_list(std::size_t elements, const TopkFormat& format) {
  const lightcc::detail::ListLayout layout(tiles_of(elements, kTopkWireBlock), 0, format);
  std::vector<std::byte> bytes(layout.end);
  const u64 flags = kTopkFlagNonFinite | (format.has_scales() ? kTopkFlagScales : 0);
  const u64 word =
      kTopkMagic | static_cast<u64>(format.dtype) << kTopkDtypeShift | flags << kTopkFlagsShift;
  std::memcpy(bytes.data(), &word, sizeof(word));
  return bytes;
}

/// A list on its way to the GPU.
struct SentList {
  std::span<const std::byte> bytes;
  std::size_t count = 0;
  TopkFormat format;
  std::size_t at = 0;  ///< In the one copy.
};

MergeList parts_of(const SentList& list, u64 blocks, Address copied) {
  const lightcc::detail::ListLayout layout(blocks, list.count, list.format);
  const Address first = copied + list.at;
  return detail::merge_list(
      first, layout, list.format.has_scales(), first + layout.offsets, first + layout.values);
}

}  // namespace

/// A table of sums, on its way through the launches of a merge.
struct TopkSite::SumTable {
  std::vector<std::vector<SentList>> lists;     ///< The lists of each sum.
  std::vector<std::vector<std::byte>> flagged;  ///< Those that no rank has sent.
  std::size_t num_lists = 0;
  std::size_t begins = 0;  ///< Words.
  // In the copy.
  detail::Arena copied;
  std::size_t rows_at = 0;
  std::size_t lists_at = 0;

  explicit SumTable(std::span<const TopkSum> sums);
  void fill_rows(std::span<const TopkSum> sums, Address copy, detail::MergeRows& rows) const;

 private:
  std::vector<SentList> lists_of(const TopkSum& sum);
  /// Finds where everything lies in the copy.
  void arrange();
};

std::vector<SentList> TopkSite::SumTable::lists_of(const TopkSum& sum) {
  const auto bad = std::ranges::find_if(sum.lists, &TopkListView::non_finite);
  if (bad != sum.lists.end()) {
    flagged.push_back(flagged_list(sum.elements, bad->format));
    return {{.bytes = flagged.back(), .count = 0, .format = bad->format}};
  }
  std::vector<SentList> made;
  made.reserve(sum.lists.size());
  for (const TopkListView& list : sum.lists) {
    made.push_back({.bytes = bytes_of(list), .count = list.count, .format = list.format});
  }
  return made;
}

TopkSite::SumTable::SumTable(std::span<const TopkSum> sums) {
  for (const TopkSum& sum : sums) {
    lists.push_back(lists_of(sum));
    num_lists += lists.back().size();
    begins += detail::merge_begins(sum.elements, lists.back().size());
  }
  arrange();
}

void TopkSite::SumTable::arrange() {
  rows_at = copied.add(lists.size() * sizeof(MergeTensor));
  lists_at = copied.add(num_lists * sizeof(MergeList));
  for (std::vector<SentList>& of_sum : lists) {
    for (SentList& list : of_sum) {
      list.at = copied.add(list.bytes.size());
    }
  }
}

void TopkSite::SumTable::fill_rows(std::span<const TopkSum> sums,
                                   Address copy,
                                   detail::MergeRows& rows) const {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TopkSum& sum = sums[i];
    const u64 blocks = tiles_of(sum.elements, kTopkWireBlock);
    u64 capacity = 0;
    std::vector<MergeList> parts;
    for (const SentList& list : lists[i]) {
      capacity = std::max<u64>(capacity, list.count);
      parts.push_back(parts_of(list, blocks, copy));
    }
    rows.add(sum.out, sum.elements, sum.dtype, sum.postscale, capacity, parts);
  }
}

Status TopkSite::merge(std::span<const TopkSum> sums, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(kernels_.status());
  while (!sums.empty()) {
    const std::size_t count = std::min<std::size_t>(sums.size(), kMaxTopkTensors);
    LIGHTCC_RETURN_IF_ERROR(merge_table(sums.first(count), stream));
    sums = sums.subspan(count);
  }
  return {};
}

Status TopkSite::merge_table(std::span<const TopkSum> sums, StreamHandle* stream) {
  const SumTable table(sums);
  detail::Arena arena;
  const std::size_t words_bytes = sums.size() * sizeof(u32);
  const std::size_t words_at = arena.add(words_bytes);
  const std::size_t begins_at = arena.add(table.begins * sizeof(u32));
  const std::size_t copy_at = arena.add(table.copied.bytes());
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(arena.bytes(), stream));
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned,
                           pinned_.take(table.copied.bytes()));
  detail::MergeRows rows(memory + begins_at, memory + words_at);
  table.fill_rows(sums, memory + copy_at, rows);
  const MergeArguments arguments =
      rows.arguments(memory + copy_at + table.rows_at, memory + copy_at + table.lists_at);
  std::memcpy(pinned.get() + table.rows_at, rows.rows.data(), sums.size() * sizeof(MergeTensor));
  std::memcpy(
      pinned.get() + table.lists_at, rows.lists.data(), rows.lists.size() * sizeof(MergeList));
  for (const std::vector<SentList>& of_sum : table.lists) {
    for (const SentList& list : of_sum) {
      std::memcpy(pinned.get() + list.at, list.bytes.data(), list.bytes.size());
    }
  }
  LIGHTCC_RETURN_IF_ERROR(
      copy_to_device(memory + copy_at, pinned.get(), table.copied.bytes(), stream));
  LIGHTCC_RETURN_IF_ERROR(fill(memory + words_at, words_bytes, stream));
  LIGHTCC_RETURN_IF_ERROR(
      run("lightcc_merge_begin", table.num_lists, kMergeThreads, arguments, stream));
  LIGHTCC_RETURN_IF_ERROR(run(detail::of_elements("merge", sums.front().dtype),
                              rows.tiles,
                              kMergeThreads,
                              arguments,
                              stream));
  return wait(stream);
}

}  // namespace lightcc::cuda
