// The sum of sparse lists, beside the CPU's.
#include "lightcc/compression/topk/merge.hpp"

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/compression/topk/list_layout.hpp"
#include "lightcc/compression/topk/topk_list.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/measure/bench.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"
#include "lightcc_cuda/staging/topk_merge_rows.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {
namespace {

constexpr std::size_t kMergedLists = 8;

/// A list of float32, whose entries are about as far from each other.
std::vector<std::byte> made_up_list(std::size_t elements, std::size_t entries, Rng& rng) {
  const u64 blocks = tiles_of(elements, kTopkWireBlock);
  const lightcc::detail::ListLayout layout(blocks, entries, {});
  std::vector<std::byte> bytes(layout.end);
  std::vector<u32> counts(blocks);
  std::vector<u16> offsets;
  const std::size_t stride = elements / entries;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t index = i * stride + rng.below(stride);
    ++counts[index / kTopkWireBlock];
    offsets.push_back(static_cast<u16>(index % kTopkWireBlock));
  }
  const std::vector<float> values = made_up_values(entries, rng);
  const u64 first = kTopkMagic | static_cast<u64>(DataType::kFloat32) << kTopkDtypeShift;
  const u64 second = entries;
  std::memcpy(bytes.data(), &first, sizeof(first));
  std::memcpy(bytes.data() + sizeof(first), &second, sizeof(second));
  std::memcpy(bytes.data() + layout.counts, counts.data(), counts.size() * sizeof(u32));
  std::memcpy(bytes.data() + layout.offsets, offsets.data(), offsets.size() * sizeof(u16));
  std::memcpy(bytes.data() + layout.values, values.data(), values.size() * sizeof(float));
  return bytes;
}

/// Lists of one sum, in memory of the host and of the GPU.
struct MergedLists {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TopkListView> views;
  std::size_t total_bytes = 0;

  static Result<MergedLists> make(std::size_t elements, std::size_t entries) {
    MergedLists made;
    Rng rng(elements);
    for (std::size_t i = 0; i < kMergedLists; ++i) {
      made.bytes.push_back(made_up_list(elements, entries, rng));
      made.total_bytes += made.bytes.back().size();
      LIGHTCC_ASSIGN_OR_RETURN(const TopkListView view,
                               parse_list(made.bytes.back(), elements, {}));
      made.views.push_back(view);
    }
    return made;
  }
};

/// What the launches of a merge read, in memory of the GPU.
class MergeOnGpu {
 public:
  static Result<MergeOnGpu> make(const Bench& bench,
                                 const MergedLists& lists,
                                 Address out,
                                 std::size_t elements) {
    detail::Arena arena;
    const std::size_t row_at = arena.add(sizeof(MergeTensor));
    const std::size_t table_at = arena.add(kMergedLists * sizeof(MergeList));
    const std::size_t is_nan_at = arena.add(sizeof(u32));
    const std::size_t begins_at =
        arena.add(detail::merge_begins(elements, kMergedLists) * sizeof(u32));
    std::vector<std::size_t> lists_at;
    lists_at.reserve(lists.bytes.size());
    for (const std::vector<std::byte>& list : lists.bytes) {
      lists_at.push_back(arena.add(list.size()));
    }
    LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory memory,
                             allocate_device_memory(bench.driver(), arena.bytes()));
    const Address base = memory.get();
    detail::MergeRows rows(base + begins_at, base + is_nan_at);
    std::vector<MergeList> parts;
    for (std::size_t i = 0; i < kMergedLists; ++i) {
      const lightcc::detail::ListLayout layout(lists.views[i].num_blocks, lists.views[i].count, {});
      const Address list = base + lists_at[i];
      parts.push_back(
          detail::merge_list(list, layout, false, list + layout.offsets, list + layout.values));
      LIGHTCC_RETURN_IF_ERROR(bench.write(list, lists.bytes[i]));
    }
    rows.add(detail::at<std::byte>(out),
             elements,
             DataType::kFloat32,
             1.0,
             lists.views.front().count,
             parts);
    constexpr u32 kNo = 0;
    LIGHTCC_RETURN_IF_ERROR(bench.write(base + is_nan_at, std::as_bytes(std::span(&kNo, 1))));
    LIGHTCC_RETURN_IF_ERROR(bench.write(base + row_at, std::as_bytes(std::span(rows.rows))));
    LIGHTCC_RETURN_IF_ERROR(bench.write(base + table_at, std::as_bytes(std::span(rows.lists))));
    const MergeArguments arguments = rows.arguments(base + row_at, base + table_at);
    return MergeOnGpu(std::move(memory), arguments, rows.tiles);
  }

  Status launch_on(const Bench& bench) const {
    LIGHTCC_RETURN_IF_ERROR(launch(bench.driver(),
                                   bench.kernels().find("lightcc_merge_begin"),
                                   static_cast<unsigned>(kMergedLists),
                                   kMergeThreads,
                                   bench.stream(),
                                   arguments_));
    return launch(bench.driver(),
                  bench.kernels().find("lightcc_merge_f32"),
                  static_cast<unsigned>(tiles_),
                  kMergeThreads,
                  bench.stream(),
                  arguments_);
  }

 private:
  MergeOnGpu(DeviceMemory memory, const MergeArguments& arguments, u64 tiles)
      : memory_(std::move(memory)), arguments_(arguments), tiles_(tiles) {}

  DeviceMemory memory_;
  MergeArguments arguments_;
  u64 tiles_;
};

/// Bytes that TopkSite makes and the CPU does not.
Result<std::uint64_t> wrong_bytes_of_site(const Bench& bench,
                                          const MergedLists& lists,
                                          Address out,
                                          std::span<const std::byte> expected) {
  PinnedPool pinned(bench.driver());
  TopkSite site(bench.driver(), pinned);
  const Draining draining(bench);
  const TopkSum sum{.lists = lists.views,
                    .out = detail::at<std::byte>(out),
                    .elements = expected.size() / sizeof(float),
                    .dtype = DataType::kFloat32,
                    .postscale = 1.0};
  LIGHTCC_RETURN_IF_ERROR(bench.spoil(out, expected.size()));
  LIGHTCC_RETURN_IF_ERROR(site.merge(std::span(&sum, 1), bench.stream()));
  return bench.differences(out, expected);
}

}  // namespace

// TopkSite also copies the lists to the GPU. So the launches are timed on their own, and both have
// to be right.
Measurements measure_merge(Bench& bench, std::size_t elements) {
  LIGHTCC_ASSIGN_OR_RETURN(const MergedLists lists,
                           MergedLists::make(elements, topk_k(elements, kMeasuredRatio)));
  std::vector<float> sums(elements);
  const auto expected = std::as_writable_bytes(std::span(sums));
  LIGHTCC_RETURN_IF_ERROR(
      merge_lists(lists.views, expected.data(), elements, DataType::kFloat32, 1.0));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory out,
                           allocate_device_memory(bench.driver(), expected.size()));
  LIGHTCC_ASSIGN_OR_RETURN(const std::uint64_t of_site,
                           wrong_bytes_of_site(bench, lists, out.get(), expected));
  LIGHTCC_ASSIGN_OR_RETURN(const MergeOnGpu merge,
                           MergeOnGpu::make(bench, lists, out.get(), elements));
  const Draining draining(bench);
  LIGHTCC_RETURN_IF_ERROR(bench.spoil(out.get(), expected.size()));
  LIGHTCC_ASSIGN_OR_RETURN(
      Measured measured,
      bench.measure("merge", elements, lists.total_bytes + expected.size(), [&](std::size_t) {
        return merge.launch_on(bench);
      }));
  LIGHTCC_ASSIGN_OR_RETURN(const std::uint64_t of_launches, bench.differences(out.get(), expected));
  measured.errors = of_site + of_launches;
  return std::vector{std::move(measured)};
}

}  // namespace lightcc::cuda
