// Sums of TopkSite: the lists of a table of tensors go to the GPU together, and are merged by one
// launch.
#include <algorithm>
#include <memory>
#include <vector>

#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {
namespace {

/// A table of sums in memory of the GPU (kernels/merge.hpp), all of which is copied there.
struct SumTable {
  Address memory;
  detail::Arena arena{memory};
  MergeArguments arguments{};
  std::vector<MergeTensor> rows;
  std::vector<MergeList> lists;
  std::vector<const TopkListView*> views;  ///< The same lists.
  u64 tiles = 0;

  SumTable(std::span<const TopkSum> sums, Address at) : memory(at) {
    for (const TopkSum& sum : sums) {
      // A list that is not finite makes every element NaN, so none travels.
      const bool is_nan = std::ranges::any_of(sum.lists, &TopkListView::non_finite);
      rows.push_back({.first = tiles,
                      .first_list = views.size(),
                      .out = reinterpret_cast<u8*>(sum.out),  // NOLINT: of the GPU
                      .elements = sum.elements,
                      .postscale = sum.postscale,
                      .num_lists = is_nan ? 0 : static_cast<u32>(sum.lists.size()),
                      .is_nan = is_nan ? 1U : 0U});
      for (const TopkListView& list : std::span(sum.lists).first(rows.back().num_lists)) {
        views.push_back(&list);
      }
      tiles += tiles_of(sum.elements, kMergeTile);
    }
    arguments = {.tensors = arena.array<MergeTensor>(rows.size()),
                 .lists = arena.array<MergeList>(views.size()),
                 .count = static_cast<u32>(rows.size()),
                 .num_lists = static_cast<u32>(views.size()),
                 .dtype = static_cast<u32>(sums.front().dtype)};
    for (const TopkListView* const view : views) {
      const u32* const begins = arena.array<u32>(view->num_blocks + 1);
      const Address first = arena.add(bytes_of(*view).size());
      const Address offsets = first + static_cast<Address>(view->offsets - bytes_of(*view).data());
      const Address values = first + static_cast<Address>(view->values - bytes_of(*view).data());
      lists.push_back(
          {.begins = begins,
           .exponents = view->format.has_scales() ? detail::at<const i16>(first) : nullptr,
           .offsets = detail::at<const u16>(offsets),
           .values = detail::at<const u8>(values)});
    }
  }

  std::size_t bytes() const { return arena.end - memory; }
  /// Writes it, to memory of the host.
  void write(std::byte* to) const {
    const auto put = [&](const void* address, std::span<const std::byte> bytes) {
      std::ranges::copy(bytes, to + (reinterpret_cast<Address>(address) - memory));
    };
    put(arguments.tensors, std::as_bytes(std::span(rows)));
    put(arguments.lists, std::as_bytes(std::span(lists)));
    for (std::size_t i = 0; i < lists.size(); ++i) {
      const TopkListView& view = *views[i];
      std::vector<u32> begins{0};
      for (std::size_t block = 0; block < view.num_blocks; ++block) {
        begins.push_back(begins.back() + static_cast<u32>(view.block_count(block)));
      }
      put(lists[i].begins, std::as_bytes(std::span(begins)));
      const bool has_scales = lists[i].exponents != nullptr;
      put(has_scales ? static_cast<const void*>(lists[i].exponents) : lists[i].offsets,
          bytes_of(view));
    }
  }

 private:
  /// What travels of a list: all but header and counts.
  static std::span<const std::byte> bytes_of(const TopkListView& list) {
    const std::byte* const first = list.counts + list.num_blocks * sizeof(u32);
    return {first, list.values + list.count * list.format.value_bytes()};
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
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(SumTable(sums, 0).bytes(), stream));
  const SumTable table(sums, memory);
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned, pinned_.take(table.bytes()));
  table.write(pinned.get());
  LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_device(memory, pinned.get(), table.bytes(), stream));
  LIGHTCC_RETURN_IF_ERROR(run("merge", table.tiles, kMergeThreads, table.arguments, stream));
  return driver_.wait_for_stream(stream);
}

}  // namespace lightcc::cuda
