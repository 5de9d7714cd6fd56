// Top-k compression by its kernels, on the simulator or on a GPU: what HostResidual does, for
// several tensors at once.
#pragma once

#include <array>
#include <bit>

#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/topk/list_layout.hpp"

#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/indices.hpp"

namespace lightcc::cuda::testing {

using TopkKernel = void (*)(TopkArguments);

struct TopkKernels {
  TopkKernel begin, select, sample, judge, count, descend, finish, encode, measure;
};

inline TopkKernels topk_kernels(DataType dtype) {
  if (dtype == DataType::kFloat64) {
    return {lightcc_topk_begin_f64,
            lightcc_topk_select_f64,
            lightcc_topk_sample_f64,
            lightcc_topk_judge_f64,
            lightcc_topk_count_f64,
            lightcc_topk_descend_f64,
            lightcc_topk_finish_f64,
            lightcc_topk_encode_f64,
            lightcc_topk_measure_f64};
  }
  TopkKernels found = {lightcc_topk_begin_f32,
                       lightcc_topk_select_f32,
                       lightcc_topk_sample_f32,
                       lightcc_topk_judge_f32,
                       lightcc_topk_count_f32,
                       lightcc_topk_descend_f32,
                       lightcc_topk_finish_f32,
                       lightcc_topk_encode_f32,
                       lightcc_topk_measure_f32};
  if (dtype == DataType::kFloat16) {
    found.select = lightcc_topk_select_f16;
    found.sample = lightcc_topk_sample_f16;
    found.count = lightcc_topk_count_f16;
    found.measure = lightcc_topk_measure_f16;
  }
  if (dtype == DataType::kBfloat16) {
    found.select = lightcc_topk_select_bf16;
    found.sample = lightcc_topk_sample_bf16;
    found.count = lightcc_topk_count_bf16;
    found.measure = lightcc_topk_measure_bf16;
  }
  return found;
}

/// One tensor's arrays in "device memory". All are as long as the kernels may use, and no longer.
class TopkOnGpu {
 public:
  TopkOnGpu(DataType dtype, std::size_t numel, bool has_momentum) : dtype_(dtype), numel_(numel) {
    for (auto& array : residual_) {
      array.assign(numel * lane_bytes() / 8 + 1, 0);
    }
    for (auto& array : velocity_) {
      array.assign(has_momentum ? numel * lane_bytes() / 8 + 1 : 0, 0);
    }
    status_.resize(2 * tiles());
    bins_.resize(kTopkBins);
    block_begins_.resize(blocks());
    counts_.resize(blocks());
    exponents_.resize(blocks());
  }

  u64 tiles() const { return tiles_of(numel_, kTopkTile); }
  u64 blocks() const { return tiles_of(numel_, kTopkWireBlock); }
  std::size_t lane_bytes() const { return dtype_ == DataType::kFloat64 ? 8 : 4; }
  const TopkProgress& progress() const { return *progress_; }

  /// The row of a step. `first`: tiles of the tensors before it.
  TopkTensor row(u64 first, const u8* shard, const TopkRequest& request) {
    const TopkFormat format{.dtype = dtype_, .fp16 = request.fp16};
    offsets_.assign(request.capacity, 0);
    values_ = std::make_unique<Region>(request.capacity * format.value_bytes());
    lanes_.assign(format.has_scales() ? request.capacity * lane_bytes() / 8 + 1 : 0, 0);
    TopkTensor made{};
    made.first = first;
    made.numel = numel_;
    made.shard = shard;
    for (std::size_t i = 0; i < 2; ++i) {
      made.residual[i] = std::bit_cast<u8*>(residual_[i].data());
      made.velocity[i] = velocity_[i].empty() ? nullptr : std::bit_cast<u8*>(velocity_[i].data());
    }
    made.progress = progress_.get();
    made.status = status_.data();
    made.bins = bins_.data();
    made.block_begins = block_begins_.data();
    made.header = header_->data();
    made.counts = counts_.data();
    made.exponents = format.has_scales() ? exponents_.data() : nullptr;
    made.offsets = offsets_.data();
    made.values = values_->data();
    made.lanes = format.has_scales() ? std::bit_cast<u8*>(lanes_.data()) : nullptr;
    made.k = request.k;
    made.capacity = request.capacity;
    made.momentum = request.momentum;
    made.exact = request.exact ? 1 : 0;
    made.dtype = static_cast<u32>(dtype_);
    made.value_bytes = static_cast<u32>(format.value_bytes());
    return made;
  }

  double residual_at(std::size_t i) const { return lane_at(residual_[progress_->current], i); }
  double velocity_at(std::size_t i) const { return lane_at(velocity_[progress_->current], i); }

 private:
  double lane_at(const std::vector<u64>& lanes, std::size_t i) const {
    const auto* from = std::bit_cast<const u8*>(lanes.data()) + i * lane_bytes();
    if (lane_bytes() == 8) {
      double value = 0.0;
      std::memcpy(&value, from, sizeof(value));
      return value;
    }
    float value = 0.0F;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

  DataType dtype_;
  std::size_t numel_;
  std::array<std::vector<u64>, 2> residual_;
  std::array<std::vector<u64>, 2> velocity_;
  std::unique_ptr<TopkProgress> progress_ = std::make_unique<TopkProgress>();
  std::vector<u64> status_;
  std::vector<u32> bins_;
  std::vector<u32> block_begins_;
  std::unique_ptr<std::array<u64, 2>> header_ = std::make_unique<std::array<u64, 2>>();
  std::vector<u32> counts_;
  std::vector<i16> exponents_;
  std::vector<u16> offsets_;
  std::unique_ptr<Region> values_;
  std::vector<u64> lanes_;
};

/// What the host is told of a step.
class PackedStep {
 public:
  /// Room for all lists if they are full, and no more.
  explicit PackedStep(const std::vector<TopkTensor>& rows) : reports_(rows.size()) {
    std::size_t bytes = 0;
    for (const TopkTensor& row : rows) {
      bytes = (bytes + kTopkPackAlignment - 1) / kTopkPackAlignment * kTopkPackAlignment;
      bytes += length_of(row, row.capacity);
    }
    packed_ = std::make_unique<Region>(bytes);
  }

  TopkProgress* reports() { return reports_.data(); }
  u8* packed() { return packed_->data(); }
  const TopkProgress& report(std::size_t index) const { return reports_[index]; }
  /// The lists, one after another, of as many entries as the reports say.
  std::vector<std::vector<std::byte>> lists(const std::vector<TopkTensor>& rows) const {
    std::vector<std::vector<std::byte>> found;
    const std::byte* next = packed_->bytes();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const u64 entries = reports_[i].non_finite != 0 ? 0 : reports_[i].listed;
      const std::size_t bytes = length_of(rows[i], entries);
      found.emplace_back(next, next + bytes);
      next += (bytes + kTopkPackAlignment - 1) / kTopkPackAlignment * kTopkPackAlignment;
    }
    return found;
  }

 private:
  static std::size_t length_of(const TopkTensor& row, u64 entries) {
    const TopkFormat format{.dtype = static_cast<DataType>(row.dtype),
                            .fp16 = row.exponents != nullptr};
    return lightcc::detail::ListLayout(
               tiles_of(row.numel, kTopkWireBlock), static_cast<std::size_t>(entries), format)
        .end;
  }

  std::vector<TopkProgress> reports_;
  std::unique_ptr<Region> packed_;
};

/// All launches of a step, but for the commit. Random seeds order blocks and threads.
inline PackedStep run_topk_step(std::vector<TopkTensor> rows, DataType dtype, Rng& rng) {
  const TopkKernels kernels = topk_kernels(dtype);
  std::vector<u32> tile_counters{77, 78};  // Begin clears them.
  u32 tiles = 0;
  u32 parts = 0;
  for (TopkTensor& row : rows) {
    row.first_part = parts;
    row.parts = static_cast<u32>(1 + rng.below(3));
    parts += row.parts;
    tiles += static_cast<u32>(tiles_of(row.numel, kTopkTile));
  }
  PackedStep step(rows);
  TopkArguments arguments{.tensors = rows.data(),
                          .tile_counters = tile_counters.data(),
                          .reports = step.reports(),
                          .packed = step.packed(),
                          .count = static_cast<u32>(rows.size()),
                          .round = 0};
  const auto launch = [&](TopkKernel kernel, u32 blocks) {
    run(kernel, blocks, kTopkThreads, arguments, rng);
  };
  launch(kernels.begin, arguments.count);
  launch(kernels.select, tiles);
  launch(kernels.sample, parts);
  launch(kernels.judge, arguments.count);
  for (u32 i = 0; i < topk_rounds(dtype == DataType::kFloat64 ? 8 : 4); ++i) {
    launch(kernels.count, parts);
    launch(kernels.descend, arguments.count);
  }
  arguments.round = 1;
  launch(kernels.select, tiles);
  launch(kernels.finish, arguments.count);
  launch(kernels.encode, tiles);
  launch(kernels.measure, arguments.count);
  launch(lightcc_topk_pack, parts);
  return step;
}

/// The step counts, unless a list of its own is not finite.
inline void commit_topk_step(const std::vector<TopkTensor>& rows, Rng& rng) {
  const TopkArguments arguments{.tensors = rows.data(),
                                .tile_counters = nullptr,
                                .reports = nullptr,
                                .packed = nullptr,
                                .count = static_cast<u32>(rows.size()),
                                .round = 0};
  run(lightcc_topk_commit, arguments.count, kWarpLanes, arguments, rng);
}

}  // namespace lightcc::cuda::testing
