#include "lightcc_cuda/measure/topk_trial.hpp"

#include <cstring>
#include <span>
#include <utility>

#include "lightcc_cuda/staging/topk_site_impl.hpp"
#include "lightcc_cuda/staging/topk_step_table.hpp"

namespace lightcc::cuda {

/// As compress_table() has it.
struct TopkTrial::Table {
  TopkSite::StepTable step;
  Address memory = 0;
  std::shared_ptr<std::byte> pinned;
  std::size_t reports_of_host = 0;
  std::size_t packed_of_host = 0;
  // The words of one pass.
  detail::Arena words;
  std::size_t row_at = 0;
  std::size_t counters_at = 0;
  std::size_t status_at = 0;

  explicit Table(const SiteStep& of) : step(std::span(&of, 1)) { step.arrange(); }
};

TopkTrial::TopkTrial(TopkSite& site, StreamHandle* stream, std::unique_ptr<Table> table)
    : site_(site), stream_(stream), table_(std::move(table)) {}
TopkTrial::~TopkTrial() = default;

Result<std::unique_ptr<TopkTrial>> TopkTrial::make(TopkSite& site,
                                                   const SiteStep& step,
                                                   StreamHandle* stream) {
  step.shard->begin(false);
  auto table = std::make_unique<Table>(step);
  LIGHTCC_ASSIGN_OR_RETURN(table->memory, site.scratch(table->step.arena.bytes(), stream));
  table->step.fill_rows(table->memory);
  detail::Arena of_host;
  const std::size_t row_of_host = of_host.add(sizeof(TopkTensor));
  table->reports_of_host = of_host.add(sizeof(TopkProgress));
  table->packed_of_host = of_host.add(table->step.packed_bytes);
  LIGHTCC_ASSIGN_OR_RETURN(table->pinned, site.pinned_.take(of_host.bytes()));
  std::byte* const row = table->pinned.get() + row_of_host;
  std::memcpy(row, table->step.rows.data(), sizeof(TopkTensor));
  LIGHTCC_RETURN_IF_ERROR(
      site.copy_to_device(table->memory + table->step.rows_at, row, sizeof(TopkTensor), stream));
  LIGHTCC_RETURN_IF_ERROR(site.wait(stream));
  return std::unique_ptr<TopkTrial>(new TopkTrial(site, stream, std::move(table)));
}

Status TopkTrial::launch_step() const {
  return site_.launch_step(table_->step, stream_);
}

Status TopkTrial::launch(const char* kernel,
                         bool of_elements,
                         u64 blocks,
                         const TopkArguments& of) const {
  const DataType dtype = table_->step.shard().dtype;
  const std::string name =
      of_elements ? detail::of_elements(kernel, dtype) : detail::of_lanes(kernel, dtype);
  return site_.run(name, blocks, kTopkThreads, of, stream_);
}

Status TopkTrial::prepare_passes(std::size_t count) {
  Table& table = *table_;
  table.row_at = table.words.add(sizeof(TopkTensor));
  table.counters_at = table.words.add(2 * sizeof(u32));
  table.status_at = table.words.add(2 * table.step.tiles * sizeof(u64));
  LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory made,
                           allocate_device_memory(site_.driver_, count * table.words.bytes()));
  passes_.emplace(std::move(made));
  num_passes_ = count;
  for (std::size_t i = 0; i < count; ++i) {
    const Address words = passes_->get() + i * table.words.bytes();
    TopkTensor row = table.step.rows.front();
    row.status = detail::at<u64>(words + table.status_at);
    LIGHTCC_RETURN_IF_ERROR(site_.copy_to_device(words + table.row_at, &row, sizeof(row), stream_));
    LIGHTCC_RETURN_IF_ERROR(site_.wait(stream_));  // The row goes.
  }
  return {};
}

TopkArguments TopkTrial::pass_arguments(std::size_t index) const {
  const Table& table = *table_;
  const Address words = passes_->get() + index * table.words.bytes();
  TopkArguments arguments = table.step.arguments;
  arguments.tensors = detail::at<const TopkTensor>(words + table.row_at);
  arguments.tile_counters = detail::at<u32>(words + table.counters_at);
  return arguments;
}

Status TopkTrial::begin_passes() const {
  for (std::size_t i = 0; i < num_passes_; ++i) {
    LIGHTCC_RETURN_IF_ERROR(launch("topk_begin", false, 1, pass_arguments(i)));
  }
  return {};
}

Status TopkTrial::launch_pass(std::size_t index) const {
  return launch("topk_select", true, table_->step.tiles, pass_arguments(index));
}

// A threshold that held needs no search.
Status TopkTrial::end_pass(std::size_t index) const {
  const TopkArguments arguments = pass_arguments(index);
  const u64 parts = table_->step.parts;
  LIGHTCC_RETURN_IF_ERROR(launch("topk_sample", true, parts, arguments));
  LIGHTCC_RETURN_IF_ERROR(launch("topk_judge", false, 1, arguments));
  LIGHTCC_RETURN_IF_ERROR(launch("topk_finish", false, 1, arguments));
  LIGHTCC_RETURN_IF_ERROR(launch("topk_measure", true, 1, arguments));
  return site_.run("lightcc_topk_pack", parts, kTopkThreads, arguments, stream_);
}

Status TopkTrial::spoil(unsigned char value) const {
  const Table& table = *table_;
  const auto fill = [&](Address to, std::size_t bytes) {
    return site_.driver_.check(site_.driver_.call().fill(to, value, bytes, stream_),
                               "cuMemsetD8Async");
  };
  LIGHTCC_RETURN_IF_ERROR(fill(table.memory + table.step.lists_at, table.step.lists_bytes));
  LIGHTCC_RETURN_IF_ERROR(fill(table.memory + table.step.packed_at, table.step.packed_bytes));
  const TopkShard& shard = table.step.shard();
  const std::size_t next = detail::kLanesAt + detail::lanes_bytes(shard);  // The second residual.
  return fill(gpu_address(shard.memory.get()) + next, shard.numel * shard.lane_bytes());
}

Status TopkTrial::finish() {
  const Table& table = *table_;
  LIGHTCC_RETURN_IF_ERROR(site_.fetch_lists(table.step,
                                            table.memory,
                                            table.pinned.get() + table.reports_of_host,
                                            table.pinned.get() + table.packed_of_host,
                                            stream_));
  table.step.steps.front().shard->commit();
  return {};
}

}  // namespace lightcc::cuda
