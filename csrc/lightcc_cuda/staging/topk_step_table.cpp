#include "lightcc_cuda/staging/topk_step_table.hpp"

#include <algorithm>

namespace lightcc::cuda {
namespace {

// More blocks of threads than any GPU runs at once.
constexpr u64 kMaxParts = 512;

}  // namespace

TopkSite::StepTable::StepTable(std::span<const SiteStep> of)
    : steps(of.begin(), of.end()),
      rows_at(arena.add(of.size() * sizeof(TopkTensor))),
      counters_at(arena.add(2 * sizeof(u32))),
      reports_at(arena.add(of.size() * sizeof(TopkProgress))) {
  detail::Arena packed;
  for (const SiteStep& step : steps) {
    packed.add(detail::layout_of(step, step.request.capacity).end);
    tiles += tiles_of(step.shard->numel, kTopkTile);
    has_scales = has_scales || detail::format_of(step).has_scales();
  }
  packed_bytes = packed.bytes();
  packed_at = arena.add(packed_bytes);
}

void TopkSite::StepTable::arrange() {
  detail::Arena lists;
  for (const SiteStep& step : steps) {
    arrays.emplace_back(step, arena, lists);
  }
  lists_bytes = lists.bytes();
  lists_at = arena.add(lists_bytes);
}

TopkTensor TopkSite::StepTable::row(const SiteStep& step,
                                    const detail::RowArrays& arrays_of,
                                    Address memory) const {
  const TopkShard& shard = *step.shard;
  const TopkFormat format = detail::format_of(step);
  const lightcc::detail::ListLayout front = detail::layout_of(step, 0);
  const Address list = memory + lists_at;
  TopkTensor row = detail::row_of(shard);
  for (std::size_t i = 0; shard.next_has_velocity && i < 2; ++i) {
    row.velocity[i] =
        detail::at<u8>(gpu_address(shard.velocity.get()) + i * detail::lanes_bytes(shard));
  }
  row.shard = reinterpret_cast<const u8*>(step.input);
  row.status = detail::at<u64>(memory + arrays_of.status);
  row.bins = detail::at<u32>(memory + arrays_of.bins);
  row.block_begins = detail::at<u32>(memory + arrays_of.begins);
  row.header = detail::at<u64>(list + arrays_of.front);
  row.counts = detail::at<u32>(list + arrays_of.front + front.counts);
  row.offsets = detail::at<u16>(list + arrays_of.offsets);
  row.values = detail::at<u8>(list + arrays_of.values);
  if (format.has_scales()) {
    row.exponents = detail::at<i16>(list + arrays_of.front + front.exponents);
    row.lanes = detail::at<u8>(memory + arrays_of.lanes);
  }
  row.k = step.request.k;
  row.capacity = step.request.capacity;
  row.momentum = step.request.momentum;
  row.exact = step.request.exact ? 1 : 0;
  row.value_bytes = static_cast<u32>(format.value_bytes());
  return row;
}

/// Shards share kMaxParts blocks by their sizes, at least one and at most one for each tile.
void TopkSite::StepTable::fill_rows(Address memory) {
  u64 first = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    TopkTensor made = row(steps[i], arrays[i], memory);
    const u64 of_tensor = tiles_of(made.numel, kTopkTile);
    made.first = first;
    made.first_part = parts;
    made.parts = static_cast<u32>(std::clamp<u64>(of_tensor * kMaxParts / tiles, 1, of_tensor));
    first += of_tensor;
    parts += made.parts;
    rows.push_back(made);
  }
  arguments.tensors = detail::at<const TopkTensor>(memory + rows_at);
  arguments.tile_counters = detail::at<u32>(memory + counters_at);
  arguments.reports = detail::at<TopkProgress>(memory + reports_at);
  arguments.packed = detail::at<u8>(memory + packed_at);
  arguments.count = static_cast<u32>(steps.size());
}

}  // namespace lightcc::cuda
