// Sums of TopkSite: the lists of a table of tensors go to the GPU together, and are merged by two
// launches.
#include <algorithm>
#include <memory>
#include <vector>

#include "lightcc/compression/topk/list_layout.hpp"

#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {
namespace {

/// A table of sums in memory of the GPU (kernels/merge.hpp), and what is copied there.
struct SumTable {
  detail::Arena arena;
  Address copied = 0;  ///< Everything from here on.
  MergeArguments arguments{};
  std::vector<MergeTensor> rows;
  std::vector<MergeList> lists;
  std::vector<u32> are_nan;
  std::vector<std::span<const std::byte>> list_bytes;
  u64 tiles = 0;

  SumTable(std::span<const TopkSum> sums, Address memory) : arena{memory} {
    std::vector<const TopkListView*> all;
    for (const TopkSum& sum : sums) {
      // A list that is not finite makes every element NaN, so none travels.
      const bool is_nan = std::ranges::any_of(sum.lists, &TopkListView::non_finite);
      are_nan.push_back(is_nan ? 1 : 0);
      MergeTensor row{};
      row.first = tiles;
      row.first_list = all.size();
      row.num_lists = is_nan ? 0 : static_cast<u32>(sum.lists.size());
      row.begins = arena.array<u32>(row.num_lists * tiles_of(sum.elements, kTopkWireBlock));
      row.out = reinterpret_cast<u8*>(sum.out);  // NOLINT: of the GPU
      row.elements = sum.elements;
      row.postscale = sum.postscale;
      row.dtype = static_cast<u32>(sum.dtype);
      for (const TopkListView& list : std::span(sum.lists).first(row.num_lists)) {
        row.capacity = std::max<u64>(row.capacity, list.count);
        all.push_back(&list);
      }
      rows.push_back(row);
      tiles += tiles_of(sum.elements, kMergeTile);
    }
    copied = arena.end;
    arguments = {.tensors = arena.array<MergeTensor>(rows.size()),
                 .lists = arena.array<MergeList>(all.size()),
                 .count = static_cast<u32>(rows.size()),
                 .num_lists = static_cast<u32>(all.size())};
    u32* is_nan = arena.array<u32>(rows.size());
    for (MergeTensor& row : rows) {
      row.is_nan = is_nan++;
    }
    for (const TopkListView* const list : all) {
      add(*list);
    }
  }

  /// Writes what is copied, to memory for that.
  void write(std::byte* to) const {
    const auto put = [&](const void* place, std::span<const std::byte> bytes) {
      std::ranges::copy(bytes, to + (reinterpret_cast<Address>(place) - copied));
    };
    put(arguments.tensors, std::as_bytes(std::span(rows)));
    put(arguments.lists, std::as_bytes(std::span(lists)));
    put(rows.front().is_nan, std::as_bytes(std::span(are_nan)));
    for (std::size_t i = 0; i < lists.size(); ++i) {
      put(lists[i].header, list_bytes[i]);
    }
  }

 private:
  void add(const TopkListView& list) {
    const lightcc::detail::ListLayout layout(list.num_blocks, list.count, list.format);
    const Address first = arena.add(layout.end);
    const bool has_scales = list.format.has_scales();
    lists.push_back(
        {.header = detail::at<const u64>(first),
         .counts = detail::at<const u32>(first + layout.counts),
         .exponents = has_scales ? detail::at<const i16>(first + layout.exponents) : nullptr,
         .offsets = detail::at<const u16>(first + layout.offsets),
         .values = detail::at<const u8>(first + layout.values)});
    list_bytes.emplace_back(list.counts - layout.counts, layout.end);
  }
};

}  // namespace

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
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(SumTable(sums, 0).arena.end, stream));
  const SumTable table(sums, memory);
  const std::size_t bytes = table.arena.end - table.copied;
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned, pinned_.take(bytes));
  table.write(pinned.get());
  LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_device(table.copied, pinned.get(), bytes, stream));
  if (!table.lists.empty()) {
    LIGHTCC_RETURN_IF_ERROR(
        run("merge_begin", table.lists.size(), kMergeThreads, table.arguments, stream));
  }
  const std::string kernel = detail::of_elements("merge", sums.front().dtype);
  LIGHTCC_RETURN_IF_ERROR(run(kernel, table.tiles, kMergeThreads, table.arguments, stream));
  return driver_.wait_for_stream(stream);
}

}  // namespace lightcc::cuda
