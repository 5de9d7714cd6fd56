// Steps of TopkSite: a table of shards goes through the launches of kernels/topk.hpp together.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lightcc_cuda/staging/topk_site.hpp"
#include "lightcc_cuda/staging/topk_step_table.hpp"

namespace lightcc::cuda {
namespace {

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

}  // namespace

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
  // Those whose last step counts come first.
  const auto others =
      std::ranges::partition(table.steps, [](const SiteStep& step) { return settle(*step.shard); });
  const std::size_t committed = table.steps.size() - others.size();
  table.arrange();
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(table.arena.bytes(), stream));
  for (const SiteStep& step : table.steps) {
    TopkShard& shard = *step.shard;
    if (shard.next_has_velocity && shard.velocity == nullptr) {
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
  if (committed > 0) {
    LIGHTCC_RETURN_IF_ERROR(commit(committed, rows, stream));
  }
  for (const SiteStep& step : table.steps) {
    step.shard->is_commit_due = false;
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
    shard.next_forecast = detail::forecast_of(progress.next);
    shard.is_reported = true;
    *step.outcome = {.bytes = detail::layout_of(step, count).end,
                     .count = count,
                     .non_finite = shard.is_non_finite,
                     .passes = passes_of(progress, step.request, shard)};
    end = packed.add(step.outcome->bytes) + step.outcome->bytes;
  }
  return end;
}

}  // namespace lightcc::cuda
