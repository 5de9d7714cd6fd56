#include "lightcc_cuda/staging/topk_site.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "lightcc/compression/float_types.hpp"
#include "lightcc/compression/list_layout.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/merge.hpp"

namespace lightcc::cuda {
namespace {

// In a shard's memory: its progress, and behind that a word that stays zero.
constexpr std::size_t kVoidAt = sizeof(TopkProgress);
constexpr std::size_t kLanesAt = 256;
static_assert(kVoidAt + sizeof(u32) <= kLanesAt);
// More blocks of threads for one tensor than any GPU runs at once.
constexpr u64 kMaxParts = 512;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT: of the GPU, never read here
}

constexpr std::size_t up_to(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Where things lie in memory that is taken all at once.
class Arena {
 public:
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = bytes_;
    bytes_ = up_to(bytes_ + bytes, 16);
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Of one of a pair of arrays, for kernels that read 16 bytes at a time.
std::size_t lanes_bytes(const TopkShard& shard) {
  return up_to(shard.numel * shard.lane_bytes(), 256);
}

const char* suffix_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return "f64";
    case DataType::kFloat16:
      return "f16";
    case DataType::kBfloat16:
      return "bf16";
    default:
      return "f32";
  }
}

std::string of_elements(const char* kernel, DataType dtype) {
  return std::string("lightcc_") + kernel + '_' + suffix_of(dtype);
}
std::string of_lanes(const char* kernel, DataType dtype) {
  return std::string("lightcc_") + kernel + (dtype == DataType::kFloat64 ? "_f64" : "_f32");
}

/// What a row says of a shard, whatever the step.
TopkTensor row_of(const TopkShard& shard) {
  const Address memory = shard.memory->get();
  TopkTensor row{};
  row.numel = shard.numel;
  row.dtype = static_cast<u32>(shard.dtype);
  row.progress = at<TopkProgress>(memory);
  for (std::size_t i = 0; i < 2; ++i) {
    row.residual[i] = at<u8>(memory + kLanesAt + i * lanes_bytes(shard));
  }
  return row;
}

TopkProgress first_progress(const SavedTopk& saved) {
  TopkProgress progress{};
  progress.forecast = {
      .threshold = saved.forecast.threshold, .ideal = saved.forecast.ideal, .k = saved.forecast.k};
  progress.step = saved.step;
  return progress;
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

/// The bytes of a list that was checked.
std::span<const std::byte> bytes_of(const TopkListView& list) {
  const std::byte* const first = list.counts - detail::ListLayout(0, 0, {}).counts;
  const detail::ListLayout layout(list.num_blocks, list.count, list.format);
  return {first, layout.end};
}

/// A list that makes all elements NaN.
std::vector<std::byte> flagged_list(std::size_t elements, const TopkFormat& format) {
  const detail::ListLayout layout(tiles_of(elements, kTopkWireBlock), 0, format);
  std::vector<std::byte> bytes(layout.end);
  const u64 flags = kTopkFlagNonFinite | (format.has_scales() ? kTopkFlagScales : 0);
  const u64 word =
      kTopkMagic | static_cast<u64>(format.dtype) << kTopkDtypeShift | flags << kTopkFlagsShift;
  std::memcpy(bytes.data(), &word, sizeof(word));
  return bytes;
}

}  // namespace

/// What a step is launched with.
struct TopkSite::Step {
  TopkArguments arguments{};
  u64 tiles = 0;
  bool has_scales = false;
};

Status TopkSite::wait(StreamHandle* stream) const {
  return driver_.check(driver_.call().wait_for_stream(stream), "cuStreamSynchronize");
}

Status TopkSite::copy_to_host(void* to,
                              Address from,
                              std::size_t bytes,
                              StreamHandle* stream) const {
  return bytes == 0 ? Status()
                    : driver_.check(driver_.call().copy_to_host(to, from, bytes, stream),
                                    "cuMemcpyDtoHAsync");
}

Status TopkSite::copy_to_device(Address to,
                                const void* from,
                                std::size_t bytes,
                                StreamHandle* stream) const {
  return bytes == 0 ? Status()
                    : driver_.check(driver_.call().copy_to_device(to, from, bytes, stream),
                                    "cuMemcpyHtoDAsync");
}

Status TopkSite::fill(Address to, std::size_t bytes, StreamHandle* stream) const {
  return driver_.check(driver_.call().fill(to, 0, bytes, stream), "cuMemsetD8Async");
}

Status TopkSite::load() {
  if (!kernels_.has_value()) {
    LIGHTCC_ASSIGN_OR_RETURN(KernelTable loaded, KernelTable::load_compression(driver_));
    kernels_ = std::move(loaded);
  }
  return {};
}

// Whoever used it last has waited for the GPU.
Result<Address> TopkSite::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, std::size_t{64} << 10));
    scratch_.reset();
    scratch_bytes_ = 0;
    LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory made, allocate_device_memory(driver_, size));
    scratch_.emplace(std::move(made));
    scratch_bytes_ = size;
  }
  return scratch_->get();
}

template <typename Arguments>
Status TopkSite::run(const std::string& kernel,
                     u64 blocks,
                     unsigned threads,
                     const Arguments& arguments,
                     StreamHandle* stream) const {
  return launch(
      driver_, kernels_->find(kernel), static_cast<unsigned>(blocks), threads, stream, arguments);
}

// --- What is kept back --------------------------------------------------------------------------

Status TopkSite::make(TopkShard& shard, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(load());
  const std::size_t bytes = kLanesAt + 2 * lanes_bytes(shard);
  LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory made, allocate_device_memory(driver_, bytes));
  shard.memory.emplace(std::move(made));
  return fill(shard.memory->get(), bytes, stream);
}

Status TopkSite::add_velocity(TopkShard& shard, StreamHandle* stream) const {
  LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory made,
                           allocate_device_memory(driver_, 2 * lanes_bytes(shard)));
  shard.velocity.emplace(std::move(made));
  return fill(shard.velocity->get(), 2 * lanes_bytes(shard), stream);
}

Status TopkSite::load_shard(TopkShard& shard, const SavedTopk& saved, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(make(shard, stream));
  const TopkProgress progress = first_progress(saved);
  const Address memory = shard.memory->get();
  LIGHTCC_RETURN_IF_ERROR(copy_to_device(memory, &progress, sizeof(progress), stream));
  LIGHTCC_RETURN_IF_ERROR(
      copy_to_device(memory + kLanesAt, saved.residual.data(), saved.residual.size(), stream));
  shard.has_velocity = saved.has_velocity;
  if (saved.has_velocity) {
    LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
    LIGHTCC_RETURN_IF_ERROR(copy_to_device(
        shard.velocity->get(), saved.velocity.data(), saved.velocity.size(), stream));
  }
  return wait(stream);
}

Status TopkSite::save_shard(TopkShard& shard, Bytes& out, StreamHandle* stream) {
  LIGHTCC_ASSIGN_OR_RETURN(const Address rows, scratch(sizeof(TopkTensor)));
  if (settle(shard)) {
    const TopkTensor row = row_of(shard);
    LIGHTCC_RETURN_IF_ERROR(copy_to_device(rows, &row, sizeof(row), stream));
    LIGHTCC_RETURN_IF_ERROR(commit(shard, rows, stream));
  }
  shard.ending = TopkShard::Ending::kNotified;
  TopkProgress progress{};
  LIGHTCC_RETURN_IF_ERROR(copy_to_host(&progress, shard.memory->get(), sizeof(progress), stream));
  LIGHTCC_RETURN_IF_ERROR(wait(stream));
  const std::size_t bytes = shard.numel * shard.lane_bytes();
  const std::size_t current = progress.current * lanes_bytes(shard);
  std::vector<std::byte> residual(bytes);
  std::vector<std::byte> velocity(shard.has_velocity ? bytes : 0);
  LIGHTCC_RETURN_IF_ERROR(
      copy_to_host(residual.data(), shard.memory->get() + kLanesAt + current, bytes, stream));
  if (shard.has_velocity) {
    LIGHTCC_RETURN_IF_ERROR(
        copy_to_host(velocity.data(), shard.velocity->get() + current, bytes, stream));
  }
  LIGHTCC_RETURN_IF_ERROR(wait(stream));
  write_saved_topk({.dtype = shard.dtype,
                    .numel = shard.numel,
                    .step = progress.step,
                    .forecast = {.threshold = progress.forecast.threshold,
                                 .ideal = progress.forecast.ideal,
                                 .k = progress.forecast.k},
                    .residual = residual,
                    .velocity = velocity,
                    .has_velocity = shard.has_velocity},
                   out);
  return {};
}

bool TopkSite::settle(TopkShard& shard) {
  const bool is_committed = shard.ending == TopkShard::Ending::kCommitted;
  if (is_committed) {
    shard.has_velocity = shard.next_has_velocity;
  }
  if (!shard.has_velocity) {
    shard.velocity.reset();
  }
  return is_committed;
}

Status TopkSite::commit(TopkShard& shard, Address rows, StreamHandle* stream) const {
  TopkArguments arguments{};
  arguments.tensors = at<const TopkTensor>(rows);
  arguments.is_void = at<const u32>(shard.memory->get() + kVoidAt);
  arguments.count = 1;
  return run("lightcc_topk_commit", 1, kWarpLanes, arguments, stream);
}

// --- Steps --------------------------------------------------------------------------------------

Status TopkSite::launch_step(const Step& step, const TopkShard& shard, StreamHandle* stream) const {
  TopkArguments arguments = step.arguments;
  const DataType dtype = shard.dtype;
  const auto launch = [&](const std::string& kernel, u64 blocks) {
    return run(kernel, blocks, kTopkThreads, arguments, stream);
  };
  LIGHTCC_RETURN_IF_ERROR(launch(of_lanes("topk_begin", dtype), 1));
  LIGHTCC_RETURN_IF_ERROR(launch(of_elements("topk_select", dtype), step.tiles));
  LIGHTCC_RETURN_IF_ERROR(launch(of_elements("topk_sample", dtype), arguments.parts));
  LIGHTCC_RETURN_IF_ERROR(launch(of_lanes("topk_judge", dtype), 1));
  for (u32 i = 0; i < topk_rounds(static_cast<u32>(shard.lane_bytes())); ++i) {
    LIGHTCC_RETURN_IF_ERROR(launch(of_elements("topk_count", dtype), arguments.parts));
    LIGHTCC_RETURN_IF_ERROR(launch(of_lanes("topk_descend", dtype), 1));
  }
  arguments.round = 1;
  LIGHTCC_RETURN_IF_ERROR(launch(of_elements("topk_select", dtype), step.tiles));
  LIGHTCC_RETURN_IF_ERROR(launch(of_lanes("topk_finish", dtype), 1));
  if (step.has_scales) {
    LIGHTCC_RETURN_IF_ERROR(launch(of_lanes("topk_encode", dtype), step.tiles));
  }
  return launch(of_elements("topk_measure", dtype), 1);
}

Status TopkSite::compress(TopkShard& shard,
                          const std::byte* input,
                          const TopkRequest& request,
                          std::span<std::byte> list,
                          TopkOutcome& outcome,
                          StreamHandle* stream) {
  const TopkFormat format{.dtype = shard.dtype, .fp16 = request.fp16};
  const u64 tiles = tiles_of(shard.numel, kTopkTile);
  const u64 blocks = tiles_of(shard.numel, kTopkWireBlock);
  const detail::ListLayout full(blocks, request.capacity, format);
  Arena arena;
  const std::size_t row_at = arena.add(sizeof(TopkTensor));
  const std::size_t counters_at = arena.add(2 * sizeof(u32));
  const std::size_t status_at = arena.add(2 * tiles * sizeof(u64));
  const std::size_t bins_at = arena.add(kTopkBins * sizeof(u32));
  const std::size_t begins_at = arena.add(blocks * sizeof(u32));
  const std::size_t front_at = arena.add(full.offsets);  // Header, counts and exponents.
  const std::size_t offsets_at = arena.add(request.capacity * sizeof(u16));
  const std::size_t values_at = arena.add(request.capacity * format.value_bytes());
  const std::size_t lanes_at =
      arena.add(format.has_scales() ? request.capacity * shard.lane_bytes() : 0);
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(arena.bytes()));

  const bool commits = settle(shard);
  shard.next_has_velocity = request.momentum != 0.0;
  if (shard.next_has_velocity && !shard.velocity.has_value()) {
    LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
  }
  TopkTensor row = row_of(shard);
  for (std::size_t i = 0; shard.next_has_velocity && i < 2; ++i) {
    row.velocity[i] = at<u8>(shard.velocity->get() + i * lanes_bytes(shard));
  }
  row.shard = reinterpret_cast<const u8*>(input);
  row.status = at<u64>(memory + status_at);
  row.bins = at<u32>(memory + bins_at);
  row.block_begins = at<u32>(memory + begins_at);
  row.header = at<u64>(memory + front_at);
  row.counts = at<u32>(memory + front_at + full.counts);
  row.exponents = format.has_scales() ? at<i16>(memory + front_at + full.exponents) : nullptr;
  row.offsets = at<u16>(memory + offsets_at);
  row.values = at<u8>(memory + values_at);
  row.lanes = format.has_scales() ? at<u8>(memory + lanes_at) : nullptr;
  row.k = request.k;
  row.capacity = request.capacity;
  row.scale = 1.0;
  row.momentum = request.momentum;
  row.exact = request.exact ? 1 : 0;

  Arena of_host;
  const std::size_t row_of_host = of_host.add(sizeof(row));
  const std::size_t progress_of_host = of_host.add(sizeof(TopkProgress));
  const std::size_t list_of_host = of_host.add(full.end);
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned, pinned_.take(of_host.bytes()));
  std::memcpy(pinned.get() + row_of_host, &row, sizeof(row));
  const Address rows = memory + row_at;
  LIGHTCC_RETURN_IF_ERROR(copy_to_device(rows, pinned.get() + row_of_host, sizeof(row), stream));
  if (commits) {
    LIGHTCC_RETURN_IF_ERROR(commit(shard, rows, stream));
  }
  shard.ending = TopkShard::Ending::kNotified;
  Step step{.arguments = {}, .tiles = tiles, .has_scales = format.has_scales()};
  step.arguments.tensors = at<const TopkTensor>(rows);
  step.arguments.tile_counters = at<u32>(memory + counters_at);
  step.arguments.count = 1;
  step.arguments.parts = static_cast<u32>(std::min(tiles, kMaxParts));
  LIGHTCC_RETURN_IF_ERROR(launch_step(step, shard, stream));

  std::byte* const made = pinned.get() + list_of_host;
  LIGHTCC_RETURN_IF_ERROR(copy_to_host(
      pinned.get() + progress_of_host, shard.memory->get(), sizeof(TopkProgress), stream));
  LIGHTCC_RETURN_IF_ERROR(copy_to_host(made, memory + front_at, full.offsets, stream));
  LIGHTCC_RETURN_IF_ERROR(wait(stream));
  TopkProgress progress{};
  std::memcpy(&progress, pinned.get() + progress_of_host, sizeof(progress));
  const auto count = detail::load_as<std::uint64_t>(made + detail::kCountAt);
  if (count > request.capacity) {
    return make_error(ErrorCode::kInternal,
                      "the GPU made a list of %llu entries, where %zu have room",
                      static_cast<unsigned long long>(count),
                      request.capacity);
  }
  const detail::ListLayout layout(blocks, static_cast<std::size_t>(count), format);
  LIGHTCC_RETURN_IF_ERROR(copy_to_host(
      made + layout.offsets, memory + offsets_at, layout.values - layout.offsets, stream));
  LIGHTCC_RETURN_IF_ERROR(
      copy_to_host(made + layout.values, memory + values_at, layout.end - layout.values, stream));
  LIGHTCC_RETURN_IF_ERROR(wait(stream));
  std::memcpy(list.data(), made, layout.end);
  shard.is_non_finite = progress.non_finite != 0;
  shard.energy = {.input = progress.input_energy, .kept = progress.kept_energy};
  outcome = {.bytes = layout.end,
             .count = static_cast<std::size_t>(count),
             .non_finite = shard.is_non_finite,
             .passes = passes_of(progress, request, shard)};
  return {};
}

// --- Sums ---------------------------------------------------------------------------------------

Status TopkSite::merge(std::span<const TopkListView> lists,
                       std::byte* out,
                       std::size_t elements,
                       DataType dtype,
                       double postscale,
                       StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(load());
  const u64 blocks = tiles_of(elements, kTopkWireBlock);
  std::vector<std::byte> flagged;
  std::vector<std::span<const std::byte>> parts;
  MergeArguments arguments{};
  for (const TopkListView& list : lists) {
    if (list.non_finite) {
      flagged = flagged_list(elements, list.format);
      parts.assign(1, flagged);
      break;
    }
    parts.push_back(bytes_of(list));
    arguments.capacity = std::max<u64>(arguments.capacity, list.count);
  }
  Arena arena;
  const std::size_t flags_at = arena.add(2 * sizeof(u32));
  const std::size_t begins_at = arena.add(parts.size() * blocks * sizeof(u32));
  const std::size_t lists_at = arena.bytes();
  for (const auto& part : parts) {
    arena.add(part.size());
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Address memory, scratch(arena.bytes()));
  // One copy of them all, in which each is aligned.
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned,
                           pinned_.take(arena.bytes() - lists_at));
  Arena copied;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t offset = copied.add(parts[i].size());
    std::memcpy(pinned.get() + offset, parts[i].data(), parts[i].size());
    const Address list = memory + lists_at + offset;
    const TopkFormat& format = lists[i].format;
    const std::size_t count = flagged.empty() ? lists[i].count : 0;
    const detail::ListLayout layout(blocks, count, format);
    arguments.lists[i] = {
        .header = at<const u64>(list),
        .counts = at<const u32>(list + layout.counts),
        .exponents = format.has_scales() ? at<const i16>(list + layout.exponents) : nullptr,
        .offsets = at<const u16>(list + layout.offsets),
        .values = at<const u8>(list + layout.values)};
  }
  arguments.begins = at<u32>(memory + begins_at);
  arguments.flags = at<u32>(memory + flags_at);
  arguments.out = reinterpret_cast<u8*>(out);
  arguments.elements = elements;
  arguments.postscale = postscale;
  arguments.num_lists = static_cast<u32>(parts.size());
  LIGHTCC_RETURN_IF_ERROR(copy_to_device(memory + lists_at, pinned.get(), copied.bytes(), stream));
  LIGHTCC_RETURN_IF_ERROR(fill(memory + flags_at, 2 * sizeof(u32), stream));
  LIGHTCC_RETURN_IF_ERROR(
      run("lightcc_merge_begin", parts.size(), kMergeThreads, arguments, stream));
  LIGHTCC_RETURN_IF_ERROR(run(of_elements("merge", dtype),
                              tiles_of(elements, kMergeTile),
                              kMergeThreads,
                              arguments,
                              stream));
  return wait(stream);
}

}  // namespace lightcc::cuda
