// Steps of TopkSite: a table of shards goes through the launches of kernels/topk.hpp together.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/compression/topk/list_layout.hpp"

#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {
namespace {

// More blocks of threads than any GPU runs at once.
constexpr u64 kMaxParts = 512;

TopkFormat format_of(const SiteStep& step) {
  return {.dtype = step.shard->dtype, .fp16 = step.request.fp16};
}

lightcc::detail::ListLayout layout_of(const SiteStep& step, std::size_t entries) {
  return {tiles_of(step.shard->numel, kTopkWireBlock), entries, format_of(step)};
}

/// Passes over the shard in a step that has ended.
int passes_of(const TopkProgress& progress, const TopkRequest& request, const TopkShard& shard) {
  if (progress.path != TopkPath::kExact) {
    return 1;
  }
  const bool tried = !request.exact && progress.forecast.threshold > 0.0 &&
                     progress.forecast.k == request.k && request.k != shard.numel;
  return (tried ? 1 : 0) + (progress.non_finite != 0 ? 1 : static_cast<int>(kTopkRounds) + 1);
}

/// A row with its arrays, and room for a full list.
TopkTensor row_of(const SiteStep& step, detail::Arena& arena) {
  const TopkShard& shard = *step.shard;
  const TopkFormat format = format_of(step);
  const u64 blocks = tiles_of(shard.numel, kTopkWireBlock);
  TopkTensor row = detail::row_of(shard);
  for (std::size_t i = 0; shard.next_has_velocity && i < 2; ++i) {
    row.velocity[i] =
        detail::at<u8>(gpu_address(shard.velocity.get()) + i * detail::lanes_bytes(shard));
  }
  row.k = step.request.k;
  row.capacity = step.request.capacity;
  row.momentum = step.request.momentum;
  row.exact = step.request.exact ? 1 : 0;
  row.value_bytes = static_cast<u32>(format.value_bytes());
  row.shard = reinterpret_cast<const u8*>(step.input);
  row.status = arena.array<u64>(2 * tiles_of(shard.numel, kTopkTile));
  row.bins = arena.array<u32>(kTopkBins);
  row.block_begins = arena.array<u32>(blocks);
  row.header = arena.array<u64>(2);
  row.counts = arena.array<u32>(blocks);
  row.offsets = arena.array<u16>(row.capacity);
  row.values = arena.array<u8>(row.capacity * row.value_bytes);
  if (format.has_scales()) {
    row.exponents = arena.array<i16>(blocks);
    row.lanes = arena.array<u8>(row.capacity * sizeof(float));
  }
  return row;
}

}  // namespace

/// A table of shards in memory of the GPU, on its way through the launches of a step.
struct TopkSite::StepTable {
  std::span<const SiteStep> steps;
  detail::Arena arena;
  std::vector<TopkTensor> rows;
  TopkArguments arguments{};
  std::size_t packed_bytes = 0;  ///< If all lists were full.
  u64 tiles = 0;
  u64 parts = 0;
  bool has_scales = false;

  /// Shards share kMaxParts blocks by their sizes, at least one and at most one for each tile.
  StepTable(std::span<const SiteStep> of, Address memory) : steps(of), arena{memory} {
    arguments.count = static_cast<u32>(steps.size());
    arguments.tensors = arena.array<TopkTensor>(steps.size());
    arguments.tile_counters = arena.array<u32>(2);
    arguments.reports = arena.array<TopkProgress>(steps.size());
    u64 all_tiles = 0;
    detail::Arena packed;
    for (const SiteStep& step : steps) {
      packed.add(layout_of(step, step.request.capacity).end);
      all_tiles += tiles_of(step.shard->numel, kTopkTile);
      has_scales = has_scales || format_of(step).has_scales();
    }
    packed_bytes = packed.end;
    arguments.packed = arena.array<u8>(packed_bytes);
    for (const SiteStep& step : steps) {
      TopkTensor row = row_of(step, arena);
      const u64 of_row = tiles_of(row.numel, kTopkTile);
      row.first = tiles;
      row.first_part = parts;
      row.parts = static_cast<u32>(std::clamp<u64>(of_row * kMaxParts / all_tiles, 1, of_row));
      tiles += of_row;
      parts += row.parts;
      rows.push_back(row);
    }
  }
};

Status TopkSite::launch_step(const StepTable& table, StreamHandle* stream) const {
  TopkArguments arguments = table.arguments;
  const DataType dtype = table.steps.front().shard->dtype;
  const u64 tensors = arguments.count;
  const auto run_on = [&](const std::string& kernel, u64 blocks) {
    return run(kernel, blocks, kTopkThreads, arguments, stream);
  };
  const std::string select = detail::of_elements("topk_select", dtype);
  LIGHTCC_RETURN_IF_ERROR(run_on("topk_begin", tensors));
  LIGHTCC_RETURN_IF_ERROR(run_on(select, table.tiles));
  LIGHTCC_RETURN_IF_ERROR(run_on("topk_sample", table.parts));
  LIGHTCC_RETURN_IF_ERROR(run_on("topk_judge", tensors));
  for (u32 i = 0; i < kTopkRounds; ++i) {
    LIGHTCC_RETURN_IF_ERROR(run_on(detail::of_elements("topk_count", dtype), table.parts));
    LIGHTCC_RETURN_IF_ERROR(run_on("topk_descend", tensors));
  }
  arguments.round = 1;
  LIGHTCC_RETURN_IF_ERROR(run_on(select, table.tiles));
  LIGHTCC_RETURN_IF_ERROR(run_on("topk_finish", tensors));
  if (table.has_scales) {
    LIGHTCC_RETURN_IF_ERROR(run_on("topk_encode", table.tiles));
  }
  LIGHTCC_RETURN_IF_ERROR(run_on("topk_measure", tensors));
  return run_on("topk_pack", table.parts);
}

Status TopkSite::compress(std::span<const SiteStep> steps, StreamHandle* stream) {
  while (!steps.empty()) {
    const std::size_t count = std::min<std::size_t>(steps.size(), kMaxTopkTensors);
    LIGHTCC_RETURN_IF_ERROR(compress_table(steps.first(count), stream));
    steps = steps.subspan(count);
  }
  return {};
}

Status TopkSite::compress_table(std::span<const SiteStep> steps, StreamHandle* stream) {
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(StepTable(steps, 0).arena.end, stream));
  for (const SiteStep& step : steps) {
    TopkShard& shard = *step.shard;
    if (!shard.has_velocity) {
      shard.velocity = nullptr;  // Its step did not count, or does so no more.
    }
    if (shard.next_has_velocity && shard.velocity == nullptr) {
      LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
    }
  }
  const StepTable table(steps, memory);
  const std::size_t rows_bytes = table.rows.size() * sizeof(TopkTensor);
  const std::size_t reports_bytes = table.rows.size() * sizeof(TopkProgress);
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned,
                           pinned_.take(std::max({rows_bytes, reports_bytes, table.packed_bytes})));
  std::memcpy(pinned.get(), table.rows.data(), rows_bytes);
  const auto rows = reinterpret_cast<Address>(table.arguments.tensors);
  LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_device(rows, pinned.get(), rows_bytes, stream));
  LIGHTCC_RETURN_IF_ERROR(launch_step(table, stream));
  return fetch_lists(table, pinned.get(), stream);
}

/// What became of each shard, and the lists, by way of pinned memory.
Status TopkSite::fetch_lists(const StepTable& table,
                             std::byte* pinned,
                             StreamHandle* stream) const {
  std::vector<TopkProgress> reports(table.rows.size());
  const std::size_t bytes = reports.size() * sizeof(TopkProgress);
  const auto fetch = [&](const void* from, std::size_t size) -> Status {
    LIGHTCC_RETURN_IF_ERROR(
        driver_.copy_to_host(pinned, reinterpret_cast<Address>(from), size, stream));
    return driver_.wait_for_stream(stream);
  };
  LIGHTCC_RETURN_IF_ERROR(fetch(table.arguments.reports, bytes));
  std::memcpy(reports.data(), pinned, bytes);
  detail::Arena packed;
  std::size_t end = 0;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const SiteStep& step = table.steps[i];
    const TopkProgress& progress = reports[i];
    TopkShard& shard = *step.shard;
    shard.is_non_finite = progress.non_finite != 0;
    const std::size_t count = shard.is_non_finite ? 0 : progress.listed;
    if (count > step.request.capacity) {
      return make_error(ErrorCode::kInternal,
                        "the GPU made a list of %zu entries, where %zu have room",
                        count,
                        step.request.capacity);
    }
    shard.energy = {.input = progress.input_energy, .kept = progress.kept_energy};
    shard.next_forecast = {
        .threshold = progress.next.threshold, .ideal = progress.next.ideal, .k = progress.next.k};
    shard.is_reported = true;
    *step.outcome = {.bytes = layout_of(step, count).end,
                     .count = count,
                     .non_finite = shard.is_non_finite,
                     .passes = passes_of(progress, step.request, shard)};
    end = packed.add(step.outcome->bytes) + step.outcome->bytes;
  }
  LIGHTCC_RETURN_IF_ERROR(fetch(table.arguments.packed, end));
  detail::Arena lists;
  for (const SiteStep& step : table.steps) {
    std::memcpy(step.list.data(), pinned + lists.add(step.outcome->bytes), step.outcome->bytes);
  }
  return {};
}

}  // namespace lightcc::cuda
