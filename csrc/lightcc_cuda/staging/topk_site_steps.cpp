// Steps of TopkSite: a table of shards goes through the launches of kernels/topk.hpp together.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/compression/list_layout.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"
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
  return (tried ? 1 : 0) +
         (progress.non_finite != 0
              ? 1
              : static_cast<int>(topk_rounds(static_cast<u32>(shard.lane_bytes()))) + 1);
}

/// Where the arrays of one shard lie in the memory of its table.
struct RowArrays {
  RowArrays(const SiteStep& step, detail::Arena& arena)
      : status(arena.add(2 * tiles_of(step.shard->numel, kTopkTile) * sizeof(u64))),
        bins(arena.add(kTopkBins * sizeof(u32))),
        begins(arena.add(tiles_of(step.shard->numel, kTopkWireBlock) * sizeof(u32))),
        front(arena.add(layout_of(step, 0).offsets)),
        offsets(arena.add(step.request.capacity * sizeof(u16))),
        values(arena.add(step.request.capacity * format_of(step).value_bytes())),
        lanes(arena.add(
            format_of(step).has_scales() ? step.request.capacity * step.shard->lane_bytes() : 0)) {}

  std::size_t status;
  std::size_t bins;
  std::size_t begins;
  std::size_t front;  ///< Header, counts and exponents.
  std::size_t offsets;
  std::size_t values;
  std::size_t lanes;
};

}  // namespace

/// A table of shards, on its way through the launches of a step.
struct TopkSite::StepTable {
  /// Those whose last step counts come first.
  std::vector<SiteStep> steps;
  std::size_t committed = 0;  ///< So many of them.
  // In memory of the GPU.
  detail::Arena arena;
  std::size_t rows_at;
  std::size_t counters_at;
  std::size_t reports_at;
  std::size_t packed_at = 0;
  std::vector<RowArrays> arrays;

  std::size_t packed_bytes = 0;  ///< If all lists were full.
  std::vector<TopkTensor> rows;
  TopkArguments arguments{};
  u64 tiles = 0;
  u64 parts = 0;
  bool has_scales = false;

  explicit StepTable(std::span<const SiteStep> of)
      : steps(of.begin(), of.end()),
        rows_at(arena.add(of.size() * sizeof(TopkTensor))),
        counters_at(arena.add(2 * sizeof(u32))),
        reports_at(arena.add(of.size() * sizeof(TopkProgress))) {
    detail::Arena packed;
    for (const SiteStep& step : steps) {
      packed.add(layout_of(step, step.request.capacity).end);
      tiles += tiles_of(step.shard->numel, kTopkTile);
      has_scales = has_scales || format_of(step).has_scales();
    }
    packed_bytes = packed.bytes();
    packed_at = arena.add(packed_bytes);
  }

  const TopkShard& shard() const { return *steps.front().shard; }
  void fill_rows(Address memory);

 private:
  TopkTensor row(const SiteStep& step, const RowArrays& own, Address memory) const;
};

TopkTensor TopkSite::StepTable::row(const SiteStep& step,
                                    const RowArrays& own,
                                    Address memory) const {
  const TopkShard& shard = *step.shard;
  const TopkFormat format = format_of(step);
  const lightcc::detail::ListLayout front = layout_of(step, 0);
  TopkTensor row = detail::row_of(shard);
  for (std::size_t i = 0; shard.next_has_velocity && i < 2; ++i) {
    row.velocity[i] = detail::at<u8>(shard.velocity->get() + i * detail::lanes_bytes(shard));
  }
  row.shard = reinterpret_cast<const u8*>(step.input);
  row.status = detail::at<u64>(memory + own.status);
  row.bins = detail::at<u32>(memory + own.bins);
  row.block_begins = detail::at<u32>(memory + own.begins);
  row.header = detail::at<u64>(memory + own.front);
  row.counts = detail::at<u32>(memory + own.front + front.counts);
  row.offsets = detail::at<u16>(memory + own.offsets);
  row.values = detail::at<u8>(memory + own.values);
  if (format.has_scales()) {
    row.exponents = detail::at<i16>(memory + own.front + front.exponents);
    row.lanes = detail::at<u8>(memory + own.lanes);
  }
  row.k = step.request.k;
  row.capacity = step.request.capacity;
  row.scale = 1.0;
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
    const u64 own = tiles_of(made.numel, kTopkTile);
    made.first = first;
    made.first_part = parts;
    made.parts = static_cast<u32>(std::clamp<u64>(own * kMaxParts / tiles, 1, own));
    first += own;
    parts += made.parts;
    rows.push_back(made);
  }
  arguments.tensors = detail::at<const TopkTensor>(memory + rows_at);
  arguments.tile_counters = detail::at<u32>(memory + counters_at);
  arguments.reports = detail::at<TopkProgress>(memory + reports_at);
  arguments.packed = detail::at<u8>(memory + packed_at);
  arguments.count = static_cast<u32>(steps.size());
}

Status TopkSite::launch_step(const StepTable& table, StreamHandle* stream) const {
  TopkArguments arguments = table.arguments;
  const DataType dtype = table.shard().dtype;
  const u64 tensors = arguments.count;
  const auto launch = [&](const std::string& kernel, u64 blocks) {
    return run(kernel, blocks, kTopkThreads, arguments, stream);
  };
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_lanes("topk_begin", dtype), tensors));
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_elements("topk_select", dtype), table.tiles));
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_elements("topk_sample", dtype), table.parts));
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_lanes("topk_judge", dtype), tensors));
  for (u32 i = 0; i < topk_rounds(static_cast<u32>(table.shard().lane_bytes())); ++i) {
    LIGHTCC_RETURN_IF_ERROR(launch(detail::of_elements("topk_count", dtype), table.parts));
    LIGHTCC_RETURN_IF_ERROR(launch(detail::of_lanes("topk_descend", dtype), tensors));
  }
  arguments.round = 1;
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_elements("topk_select", dtype), table.tiles));
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_lanes("topk_finish", dtype), tensors));
  if (table.has_scales) {
    LIGHTCC_RETURN_IF_ERROR(launch(detail::of_lanes("topk_encode", dtype), table.tiles));
  }
  LIGHTCC_RETURN_IF_ERROR(launch(detail::of_elements("topk_measure", dtype), tensors));
  return launch("lightcc_topk_pack", table.parts);
}

Status TopkSite::compress(std::span<const SiteStep> steps, StreamHandle* stream) {
  while (!steps.empty()) {
    const std::size_t count = std::min<std::size_t>(steps.size(), kMaxTopkTensors);
    StepTable table(steps.first(count));
    LIGHTCC_RETURN_IF_ERROR(compress_table(table, stream));
    steps = steps.subspan(count);
  }
  return {};
}

Status TopkSite::compress_table(StepTable& table, StreamHandle* stream) {
  const auto others =
      std::ranges::partition(table.steps, [](const SiteStep& step) { return settle(*step.shard); });
  table.committed = table.steps.size() - others.size();
  for (const SiteStep& step : table.steps) {
    table.arrays.emplace_back(step, table.arena);
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(table.arena.bytes()));
  for (const SiteStep& step : table.steps) {
    TopkShard& shard = *step.shard;
    shard.next_has_velocity = step.request.momentum != 0.0;
    if (shard.next_has_velocity && !shard.velocity.has_value()) {
      LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
    }
  }
  table.fill_rows(memory);

  detail::Arena of_host;
  const std::size_t rows_bytes = table.rows.size() * sizeof(TopkTensor);
  const std::size_t rows_of_host = of_host.add(rows_bytes);
  const std::size_t reports_of_host = of_host.add(table.rows.size() * sizeof(TopkProgress));
  const std::size_t packed_of_host = of_host.add(table.packed_bytes);
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned, pinned_.take(of_host.bytes()));
  std::memcpy(pinned.get() + rows_of_host, table.rows.data(), rows_bytes);
  const Address rows = memory + table.rows_at;
  LIGHTCC_RETURN_IF_ERROR(copy_to_device(rows, pinned.get() + rows_of_host, rows_bytes, stream));
  if (table.committed > 0) {
    LIGHTCC_RETURN_IF_ERROR(commit(table.shard(), table.committed, rows, stream));
  }
  for (const SiteStep& step : table.steps) {
    step.shard->ending = TopkShard::Ending::kNotified;
  }
  LIGHTCC_RETURN_IF_ERROR(launch_step(table, stream));
  return fetch_lists(
      table, memory, pinned.get() + reports_of_host, pinned.get() + packed_of_host, stream);
}

/// By way of pinned memory at `reports` and `packed`.
Status TopkSite::fetch_lists(const StepTable& table,
                             Address memory,
                             std::byte* reports,
                             std::byte* packed,
                             StreamHandle* stream) const {
  std::vector<TopkProgress> progress(table.rows.size());
  const std::size_t bytes = progress.size() * sizeof(TopkProgress);
  LIGHTCC_RETURN_IF_ERROR(copy_to_host(reports, memory + table.reports_at, bytes, stream));
  LIGHTCC_RETURN_IF_ERROR(wait(stream));
  std::memcpy(progress.data(), reports, bytes);
  LIGHTCC_ASSIGN_OR_RETURN(const std::size_t packed_bytes, read_reports(table.steps, progress));
  LIGHTCC_RETURN_IF_ERROR(copy_to_host(packed, memory + table.packed_at, packed_bytes, stream));
  LIGHTCC_RETURN_IF_ERROR(wait(stream));
  detail::Arena lists;
  for (const SiteStep& step : table.steps) {
    const std::size_t list_bytes = step.outcome->bytes;
    std::memcpy(step.list.data(), packed + lists.add(list_bytes), list_bytes);
  }
  return {};
}

/// What became of each shard. Returns the bytes of all lists as they are packed.
Result<std::size_t> TopkSite::read_reports(std::span<const SiteStep> steps,
                                           std::span<const TopkProgress> reports) {
  detail::Arena packed;
  std::size_t end = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SiteStep& step = steps[i];
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
    *step.outcome = {.bytes = layout_of(step, count).end,
                     .count = count,
                     .non_finite = shard.is_non_finite,
                     .passes = passes_of(progress, step.request, shard)};
    end = packed.add(step.outcome->bytes) + step.outcome->bytes;
  }
  return end;
}

}  // namespace lightcc::cuda
