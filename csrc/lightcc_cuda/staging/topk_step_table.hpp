// A table of shards, on its way through the launches of a step (kernels/topk.hpp): where its arrays
// lie in memory of the GPU.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lightcc/compression/topk/list_layout.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {

namespace detail {

inline TopkFormat format_of(const SiteStep& step) {
  return {.dtype = step.shard->dtype, .fp16 = step.request.fp16};
}

inline lightcc::detail::ListLayout layout_of(const SiteStep& step, std::size_t entries) {
  return {tiles_of(step.shard->numel, kTopkWireBlock), entries, format_of(step)};
}

/// Where the arrays of one shard lie in the memory of its table, and those of its list in that of
/// all lists.
struct RowArrays {
  RowArrays(const SiteStep& step, Arena& arena, Arena& lists)
      : status(arena.add(2 * tiles_of(step.shard->numel, kTopkTile) * sizeof(u64))),
        bins(arena.add(kTopkBins * sizeof(u32))),
        begins(arena.add(tiles_of(step.shard->numel, kTopkWireBlock) * sizeof(u32))),
        lanes(arena.add(
            format_of(step).has_scales() ? step.request.capacity * step.shard->lane_bytes() : 0)),
        front(lists.add(layout_of(step, 0).offsets)),
        offsets(lists.add(step.request.capacity * sizeof(u16))),
        values(lists.add(step.request.capacity * format_of(step).value_bytes())) {}

  std::size_t status;
  std::size_t bins;
  std::size_t begins;
  std::size_t lanes;
  // The list.
  std::size_t front;  ///< Header, counts and exponents.
  std::size_t offsets;
  std::size_t values;
};

}  // namespace detail

struct TopkSite::StepTable {
  std::vector<SiteStep> steps;
  // In memory of the GPU.
  detail::Arena arena;
  std::size_t rows_at;
  std::size_t counters_at;
  std::size_t reports_at;
  std::size_t packed_at = 0;
  std::size_t lists_at = 0;
  std::vector<detail::RowArrays> arrays;

  std::size_t packed_bytes = 0;  ///< If all lists were full.
  std::size_t lists_bytes = 0;
  std::vector<TopkTensor> rows;
  TopkArguments arguments{};
  u64 tiles = 0;
  u64 parts = 0;
  bool has_scales = false;

  explicit StepTable(std::span<const SiteStep> of);

  const TopkShard& shard() const { return *steps.front().shard; }
  /// Gives arrays their places, in the order of the steps.
  void arrange();
  /// Once the memory is there.
  void fill_rows(Address memory);

 private:
  TopkTensor row(const SiteStep& step, const detail::RowArrays& arrays_of, Address memory) const;
};

}  // namespace lightcc::cuda
