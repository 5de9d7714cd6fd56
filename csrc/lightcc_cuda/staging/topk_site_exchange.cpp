// Steps of TopkSite whose lists go from GPU to GPU: a table of shards is compressed to where its
// lists travel from, and the lists of all members are added up where they arrive.
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/topk_merge_rows.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"
#include "lightcc_cuda/staging/topk_step_table.hpp"

namespace lightcc::cuda {
namespace {

std::vector<SiteStep> steps_of(const std::vector<ExchangedStep>& all) {
  std::vector<SiteStep> steps;
  steps.reserve(all.size());
  for (const ExchangedStep& one : all) {
    steps.push_back(one.step);
  }
  return steps;
}

/// The first list that is flagged as damaged.
std::optional<std::size_t> damaged_list(const u32* flags) {
  for (std::size_t word = 0; word + 1 < kMergeFlags; ++word) {
    if (flags[word + 1] != 0) {
      return word * 32 + static_cast<std::size_t>(std::countr_zero(flags[word + 1]));
    }
  }
  return std::nullopt;
}

}  // namespace

/// It is used by one part after another.
struct TopkSite::Exchange {
  std::vector<ExchangedStep> steps;
  std::vector<bool*> is_void;
  std::size_t members;
  StepTable table;
  // In memory of the GPU: the tables of sums are copied there together.
  std::size_t lists_at;
  std::size_t sums_at;
  std::size_t parts_at;  ///< Behind them.
  std::size_t flags_at;
  std::size_t begins_at;
  Address memory = 0;
  std::optional<detail::MergeRows> sums;  ///< Once there is memory.
  bool is_agreed_on = false;              ///< With other members, which have other shards.
  // Pinned.
  std::shared_ptr<std::byte> pinned;
  std::size_t reports_of_host = 0;
  std::size_t flags_of_host = 0;
  std::size_t agreed_of_host = 0;

  Exchange(ExchangedTensors tensors, std::size_t of_members, std::size_t own);

  std::size_t rows_bytes() const { return steps.size() * sizeof(TopkTensor); }
  std::size_t reports_bytes() const { return steps.size() * sizeof(TopkProgress); }
  std::size_t sums_bytes() const { return steps.size() * sizeof(MergeTensor); }
  std::size_t parts_bytes() const { return steps.size() * members * sizeof(MergeList); }
  std::size_t begins_bytes() const;
  std::size_t flag_words() const { return is_void.size() * kMergeFlags; }
  std::size_t flags_bytes() const { return flag_words() * sizeof(u32); }
  void fill_sums();
  MergeArguments sum_arguments() const {
    return sums->arguments(memory + sums_at, memory + parts_at);
  }

 private:
  MergeList part(std::size_t step, std::size_t member) const;
};

TopkSite::Exchange::Exchange(ExchangedTensors tensors, std::size_t of_members, std::size_t own)
    : steps(std::move(tensors.steps)),
      is_void(std::move(tensors.is_void)),
      members(of_members),
      table(steps_of(steps), false),
      lists_at(table.arrange(members, own)),
      sums_at(table.arena.add(sums_bytes())),
      parts_at(table.arena.add(parts_bytes())),
      flags_at(table.arena.add(flags_bytes())),
      begins_at(table.arena.add(begins_bytes())) {
  static_assert(sizeof(MergeTensor) % 16 == 0);
}

std::size_t TopkSite::Exchange::begins_bytes() const {
  std::size_t begins = 0;
  for (const ExchangedStep& one : steps) {
    begins += detail::merge_begins(one.step.shard->numel, members);
  }
  return begins * sizeof(u32);
}

MergeList TopkSite::Exchange::part(std::size_t step, std::size_t member) const {
  const detail::RowArrays& arrays = table.arrays[step];
  const lightcc::detail::ListLayout front = detail::layout_of(steps[step].step, 0);
  const Address list = memory + lists_at + member * table.lists_bytes;
  return detail::merge_list(list + arrays.front,
                            front,
                            detail::format_of(steps[step].step).has_scales(),
                            list + arrays.offsets,
                            list + arrays.values);
}

void TopkSite::Exchange::fill_sums() {
  sums.emplace(memory + begins_at, memory + flags_at);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SiteStep& step = steps[i].step;
    std::vector<MergeList> parts;
    parts.reserve(members);
    for (std::size_t member = 0; member < members; ++member) {
      parts.push_back(part(i, member));
    }
    sums->add(steps[i].out,
              step.shard->numel,
              step.shard->dtype,
              steps[i].postscale,
              step.request.capacity,
              parts);
  }
}

TopkSite::TopkSite(const Driver& driver, PinnedPool& pinned) : driver_(driver), pinned_(pinned) {}
TopkSite::~TopkSite() = default;

Status TopkSite::prepare(std::span<const ExchangedStep> steps, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(load());
  std::vector<TopkTensor> rows;
  const TopkShard* committed = nullptr;
  for (const ExchangedStep& one : steps) {
    TopkShard& shard = *one.step.shard;
    if (settle(shard)) {
      committed = &shard;
      rows.push_back(detail::row_of(shard));
    }
  }
  if (committed != nullptr) {
    const std::size_t bytes = rows.size() * sizeof(TopkTensor);
    LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(bytes));
    LIGHTCC_RETURN_IF_ERROR(copy_to_device(memory, rows.data(), bytes, stream));
    LIGHTCC_RETURN_IF_ERROR(commit(*committed, rows.size(), memory, stream));
  }
  for (const ExchangedStep& one : steps) {
    TopkShard& shard = *one.step.shard;
    shard.ending = TopkShard::Ending::kNotified;
    if (one.step.request.momentum != 0.0 && !shard.velocity.has_value()) {
      LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
    }
  }
  return wait(stream);
}

Result<ListBytes> TopkSite::begin_exchange(ExchangedTensors tensors,
                                           std::size_t members,
                                           std::size_t own,
                                           StreamHandle* stream) {
  exchange_.reset();
  auto made = std::make_unique<Exchange>(std::move(tensors), members, own);
  Exchange& exchange = *made;
  StepTable& table = exchange.table;
  for (const SiteStep& step : table.steps) {
    step.shard->ends_on_gpu = true;
  }
  LIGHTCC_ASSIGN_OR_RETURN(exchange.memory, scratch(table.arena.bytes()));
  table.fill_rows(exchange.memory);
  exchange.fill_sums();

  detail::Arena of_host;
  const std::size_t rows_of_host = of_host.add(exchange.rows_bytes());
  const std::size_t sums_of_host = of_host.add(exchange.sums_bytes());
  const std::size_t parts_of_host = of_host.add(exchange.parts_bytes());
  exchange.reports_of_host = of_host.add(exchange.reports_bytes());
  exchange.flags_of_host = of_host.add(exchange.flags_bytes());
  exchange.agreed_of_host = of_host.add(exchange.flags_bytes());
  LIGHTCC_ASSIGN_OR_RETURN(exchange.pinned, pinned_.take(of_host.bytes()));
  LIGHTCC_RETURN_IF_ERROR(
      fill(exchange.memory + exchange.flags_at, exchange.flags_bytes(), stream));
  if (exchange.steps.empty()) {
    exchange_ = std::move(made);
    return ListBytes{};
  }
  std::byte* const host = exchange.pinned.get();
  std::memcpy(host + rows_of_host, table.rows.data(), exchange.rows_bytes());
  std::memcpy(host + sums_of_host, exchange.sums->rows.data(), exchange.sums_bytes());
  std::memcpy(host + parts_of_host, exchange.sums->lists.data(), exchange.parts_bytes());
  LIGHTCC_RETURN_IF_ERROR(copy_to_device(
      exchange.memory + table.rows_at, host + rows_of_host, exchange.rows_bytes(), stream));
  LIGHTCC_RETURN_IF_ERROR(copy_to_device(exchange.memory + exchange.sums_at,
                                         host + sums_of_host,
                                         exchange.sums_bytes() + exchange.parts_bytes(),
                                         stream));
  LIGHTCC_RETURN_IF_ERROR(launch_step(table, stream));
  for (const SiteStep& step : table.steps) {
    step.shard->course = TopkShard::Course::kLaunched;
  }
  exchange_ = std::move(made);
  const Address lists = exchange.memory + exchange.lists_at;
  return ListBytes{.own = detail::at<const std::byte>(lists + own * table.lists_bytes),
                   .all = detail::at<std::byte>(lists),
                   .bytes = table.lists_bytes};
}

Status TopkSite::check_exchange(StreamHandle* stream) const {
  const Exchange& exchange = *exchange_;
  if (!exchange.steps.empty()) {
    const DataType dtype = exchange.table.shard().dtype;
    const MergeArguments sums = exchange.sum_arguments();
    LIGHTCC_RETURN_IF_ERROR(
        run("lightcc_merge_begin", exchange.sums->lists.size(), kMergeThreads, sums, stream));
    LIGHTCC_RETURN_IF_ERROR(run(detail::of_elements("merge_check", dtype),
                                exchange.sums->tiles,
                                kMergeThreads,
                                sums,
                                stream));
  }
  return copy_to_host(exchange.pinned.get() + exchange.flags_of_host,
                      exchange.memory + exchange.flags_at,
                      exchange.flags_bytes(),
                      stream);
}

Result<VoidWords> TopkSite::words_to_agree_on() {
  if (exchange_ == nullptr) {
    return make_error(ErrorCode::kInternal, "an exchange of top-k lists has not begun");
  }
  exchange_->is_agreed_on = true;
  return VoidWords{.first = detail::at<std::byte>(exchange_->memory + exchange_->flags_at),
                   .count = exchange_->flag_words()};
}

Status TopkSite::merge_exchange(StreamHandle* stream) const {
  const Exchange& exchange = *exchange_;
  const StepTable& table = exchange.table;
  std::byte* const host = exchange.pinned.get();
  if (exchange.is_agreed_on) {
    LIGHTCC_RETURN_IF_ERROR(copy_to_host(host + exchange.agreed_of_host,
                                         exchange.memory + exchange.flags_at,
                                         exchange.flags_bytes(),
                                         stream));
  }
  if (exchange.steps.empty()) {
    return {};
  }
  LIGHTCC_RETURN_IF_ERROR(run(detail::of_elements("merge", table.shard().dtype),
                              exchange.sums->tiles,
                              kMergeThreads,
                              exchange.sum_arguments(),
                              stream));
  TopkArguments ends = table.arguments;
  ends.is_void = detail::at<const u32>(exchange.memory + exchange.flags_at);
  ends.void_words = kMergeFlags;
  LIGHTCC_RETURN_IF_ERROR(run("lightcc_topk_commit", ends.count, kWarpLanes, ends, stream));
  return copy_to_host(host + exchange.reports_of_host,
                      exchange.memory + table.reports_at,
                      exchange.reports_bytes(),
                      stream);
}

Status TopkSite::end_exchange(std::span<const std::int32_t> ranks) {
  const std::unique_ptr<Exchange> ended = std::move(exchange_);
  const Exchange& exchange = *ended;
  std::vector<u32> flags(exchange.flag_words());
  std::vector<u32> agreed(exchange.flag_words());
  const std::byte* const host = exchange.pinned.get();
  std::memcpy(flags.data(), host + exchange.flags_of_host, exchange.flags_bytes());
  std::memcpy(agreed.data(),
              host + (exchange.is_agreed_on ? exchange.agreed_of_host : exchange.flags_of_host),
              exchange.flags_bytes());
  if (!exchange.steps.empty()) {
    std::vector<TopkProgress> reports(exchange.steps.size());
    std::memcpy(reports.data(), host + exchange.reports_of_host, exchange.reports_bytes());
    LIGHTCC_RETURN_IF_ERROR(read_reports(exchange.table.steps, reports).status());
  }
  for (std::size_t i = 0; i < exchange.is_void.size(); ++i) {
    if (const auto list = damaged_list(flags.data() + i * kMergeFlags); list.has_value()) {
      const int rank = ranks[*list];
      return {ErrorCode::kPeerFailed,
              "rank " + std::to_string(rank) + " sent a top-k list that is damaged, from its GPU",
              rank};
    }
    *exchange.is_void[i] = agreed[i * kMergeFlags] != 0;
    if (i < exchange.steps.size()) {
      exchange.steps[i].step.shard->is_void = *exchange.is_void[i];
    }
  }
  return {};
}

}  // namespace lightcc::cuda
