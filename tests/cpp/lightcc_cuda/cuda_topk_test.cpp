// Top-k compression on the simulator, against HostResidual: lists, residuals, velocities and
// thresholds must have the same bits, step after step.
#include <array>
#include <bit>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/topk/list_layout.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda::cuda_topk_test {
namespace {

using namespace testing;           // NOLINT(google-build-using-namespace)
using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

using TopkKernel = void (*)(TopkArguments);

/// What there is for each type.
struct TopkKernelSet {
  TopkKernel select, count;
};

TopkKernelSet kernels_of(DataType dtype) {
  return dtype == DataType::kFloat16
             ? TopkKernelSet{lightcc_topk_select_f16, lightcc_topk_count_f16}
         : dtype == DataType::kBfloat16
             ? TopkKernelSet{lightcc_topk_select_bf16, lightcc_topk_count_bf16}
             : TopkKernelSet{lightcc_topk_select_f32, lightcc_topk_count_f32};
}

/// One tensor's arrays in "device memory". All are as long as the kernels may use, and no longer.
class TopkOnGpu {
 public:
  TopkOnGpu(DataType dtype, std::size_t numel, bool has_momentum) : dtype_(dtype), numel_(numel) {
    for (auto& array : residual_) {
      array.assign(numel, 0);
    }
    for (auto& array : velocity_) {
      array.assign(has_momentum ? numel : 0, 0);
    }
    status_.resize(2 * tiles());
    bins_.resize(kTopkBins);
    block_begins_.resize(blocks());
    counts_.resize(blocks());
    exponents_.resize(blocks());
  }

  u64 tiles() const { return tiles_of(numel_, kTopkTile); }
  u64 blocks() const { return tiles_of(numel_, kTopkWireBlock); }
  const TopkProgress& progress() const { return *progress_; }
  const TopkForecastBits& forecast() const { return forecast_; }
  u64 step() const { return step_; }
  /// The step counts, unless its list is not finite.
  void commit() {
    if (progress_->non_finite == 0) {
      forecast_ = progress_->next;
      current_ = 1 - current_;
      ++step_;
    }
  }

  /// The row of a step. `first`: tiles of the tensors before it.
  TopkTensor row(u64 first, const u8* shard, const TopkRequest& request) {
    const TopkFormat format{.dtype = dtype_, .fp16 = request.fp16};
    offsets_.assign(request.capacity, 0);
    values_ = std::make_unique<Region>(request.capacity * format.value_bytes());
    lanes_.assign(format.has_scales() ? request.capacity : 0, 0);
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
    made.forecast = forecast_;
    made.step = step_;
    made.current = current_;
    made.exact = request.exact ? 1 : 0;
    made.dtype = static_cast<u32>(dtype_);
    made.value_bytes = static_cast<u32>(format.value_bytes());
    return made;
  }

  double residual_at(std::size_t i) const { return residual_[current_][i]; }
  double velocity_at(std::size_t i) const { return velocity_[current_][i]; }

 private:
  DataType dtype_;
  std::size_t numel_;
  std::array<std::vector<float>, 2> residual_;
  std::array<std::vector<float>, 2> velocity_;
  std::unique_ptr<TopkProgress> progress_ = std::make_unique<TopkProgress>();
  TopkForecastBits forecast_{};
  u64 step_ = 0;
  u32 current_ = 0;
  std::vector<u64> status_;
  std::vector<u32> bins_;
  std::vector<u32> block_begins_;
  std::unique_ptr<std::array<u64, 2>> header_ = std::make_unique<std::array<u64, 2>>();
  std::vector<u32> counts_;
  std::vector<i16> exponents_;
  std::vector<u16> offsets_;
  std::unique_ptr<Region> values_;
  std::vector<float> lanes_;
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

/// All launches of a step. Random seeds order blocks and threads.
PackedStep run_topk_step(std::vector<TopkTensor> rows, DataType dtype, Rng& rng) {
  const TopkKernelSet kernels = kernels_of(dtype);
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
  launch(lightcc_topk_begin, arguments.count);
  launch(kernels.select, tiles);
  launch(lightcc_topk_sample, parts);
  launch(lightcc_topk_judge, arguments.count);
  for (u32 i = 0; i < kTopkRounds; ++i) {
    launch(kernels.count, parts);
    launch(lightcc_topk_descend, arguments.count);
  }
  arguments.round = 1;
  launch(kernels.select, tiles);
  launch(lightcc_topk_finish, arguments.count);
  launch(lightcc_topk_encode, tiles);
  launch(lightcc_topk_measure, arguments.count);
  launch(lightcc_topk_pack, parts);
  return step;
}

/// An element to be drawn.
struct Draw {
  double normal;
  std::size_t i;
  std::uint64_t step;
  DataType dtype;
  Rng& rng;

  /// A normal number times what its type has.
  double times(double of_float16, double of_others) const {
    return normal * (dtype == DataType::kFloat16 ? of_float16 : of_others);
  }
};

using Values = double (*)(const Draw& draw);
constexpr Values kNormal = [](const Draw& d) { return d.normal; };
/// Ties everywhere.
constexpr Values kConstant = [](const Draw& d) { return d.i % 3 == 0 ? -1.5 : 1.5; };
/// Most are zero: fewer than k are not.
constexpr Values kFew = [](const Draw& d) { return d.rng.below(400) == 0 ? d.normal : 0.0; };
constexpr Values kZeros = [](const Draw& d) { return d.i % 2 == 0 ? 0.0 : -0.0; };
/// Subnormal numbers.
constexpr Values kTiny = [](const Draw& d) { return d.times(1e-6, 1e-40); };
/// Some blocks have all the large ones.
constexpr Values kDense = [](const Draw& d) { return d.normal * (d.i / 3000 % 5 == 0 ? 50 : 1); };
/// Sums are near the end of the type, and never beyond it: what is kept is added to the next.
constexpr Values kHuge = [](const Draw& d) { return d.times(1e4, 3e37); };
/// The forecast is too high in the next step.
constexpr Values kShrinks = [](const Draw& d) { return d.normal * (d.step % 2 == 0 ? 1e3 : 1e-3); };
/// The forecast is too low: more than fits.
constexpr Values kGrows = [](const Draw& d) { return d.normal * (d.step % 2 == 0 ? 1.0 : 1e4); };

struct Tensor {
  Tensor(DataType type, std::size_t numel, bool has_momentum)
      : dtype(type), cpu(type, numel), gpu(type, numel, has_momentum) {}

  DataType dtype;
  HostResidual cpu;
  TopkOnGpu gpu;
};

void expect_same_state(const Tensor& tensor, bool has_momentum) {
  EXPECT_EQ(tensor.gpu.step(), tensor.cpu.step());
  EXPECT_EQ(std::bit_cast<u64>(tensor.gpu.forecast().threshold),
            std::bit_cast<u64>(tensor.cpu.threshold()));
  const auto expect_same = [](const char* what, std::size_t i, double gpu, double cpu) {
    ASSERT_EQ(std::bit_cast<u64>(gpu), std::bit_cast<u64>(cpu))
        << what << ' ' << i << ": " << gpu << ", not " << cpu;
  };
  for (std::size_t i = 0; i < tensor.cpu.numel(); ++i) {
    expect_same("residual", i, tensor.gpu.residual_at(i), tensor.cpu.residual_at(i));
    if (has_momentum) {
      expect_same("velocity", i, tensor.gpu.velocity_at(i), tensor.cpu.velocity_at(i));
    }
  }
}

struct Case {
  DataType dtype = DataType::kFloat32;
  Values values = kNormal;
  std::vector<std::size_t> sizes;
  double ratio = 0.01;
  bool exact = false;
  bool fp16 = false;
  double momentum = 0.0;
  std::size_t shift = 0;  ///< How far shards are from an aligned address.
  std::uint64_t steps = 4;
  std::optional<std::uint64_t> bad_step{};  ///< In which the first tensor has `bad`.
  double bad = kInfinity;
  std::optional<std::uint64_t> undone_step{};  ///< Which does not count, because of another rank.
};

/// Returns in how many steps a forecast held, for the last tensor.
int expect_same_steps(const Case& c) {
  int held = 0;
  Rng rng(seed() * 7 + c.sizes.front());
  std::vector<Tensor> tensors;
  for (const std::size_t size : c.sizes) {
    tensors.emplace_back(c.dtype, size, c.momentum != 0.0);
  }
  for (std::uint64_t step = 0; step < c.steps; ++step) {
    LIGHTCC_TRACE(data_type_name(c.dtype) << ", step " << step);
    const TopkFormat format{.dtype = c.dtype, .fp16 = c.fp16};
    std::vector<Region> shards;
    std::vector<TopkTensor> rows;
    std::vector<std::vector<std::byte>> lists;
    std::vector<bool> counts;
    u64 first = 0;
    for (const std::size_t size : c.sizes) {
      Region& shard = shards.emplace_back(size * element_size(c.dtype), c.shift);
      for (std::size_t i = 0; i < size; ++i) {
        const double normal = draw_normal(rng);
        put(c.dtype, shard.bytes(), i, c.values({normal, i, step, c.dtype, rng}));
      }
    }
    if (step == c.bad_step) {
      put(c.dtype, shards.front().bytes(), rng.below(c.sizes.front()), c.bad);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t size = c.sizes[i];
      const std::size_t k = topk_k(size, c.ratio);
      const TopkRequest request{.k = k,
                                .capacity = c.exact ? k : topk_capacity(k, size),
                                .exact = c.exact,
                                .fp16 = c.fp16,
                                .momentum = c.momentum,
                                .level = SimdLevel::kPlain};
      auto& list = lists.emplace_back(max_list_bytes(size, request.capacity, format));
      const auto outcome = tensors[i].cpu.compress(shards[i].bytes(), request, list);
      EXPECT_TRUE(outcome.ok()) << outcome.status().message();
      if (!outcome.ok()) {
        return held;
      }
      list.resize(outcome->bytes);
      EXPECT_EQ(outcome->non_finite, step == c.bad_step && i == 0);
      counts.push_back(!outcome->non_finite && step != c.undone_step);
      rows.push_back(tensors[i].gpu.row(first, shards[i].data(), request));
      first += tensors[i].gpu.tiles();
    }
    const PackedStep packed = run_topk_step(rows, c.dtype, rng);
    const std::vector<std::vector<std::byte>> made = packed.lists(rows);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(made[i], lists[i]) << "list of tensor " << i;
      const TopkProgress& progress = packed.report(i);
      if (progress.non_finite == 0) {
        EXPECT_EQ(progress.input_energy, tensors[i].cpu.energy().input);
        EXPECT_EQ(progress.kept_energy, tensors[i].cpu.energy().kept);
      }
      counts[i] ? tensors[i].cpu.commit() : tensors[i].cpu.rollback();
    }
    for (Tensor& tensor : tensors) {
      if (step != c.undone_step) {
        tensor.gpu.commit();
      }
      expect_same_state(tensor, c.momentum != 0.0);
    }
    held += tensors.back().gpu.progress().path == TopkPath::kForecast ? 1 : 0;
    if (::testing::Test::HasFailure()) {
      break;
    }
  }
  return held;
}

TEST(CudaTopk, values_of_every_kind_give_the_bits_of_the_cpu) {
  int kind = 0;
  for (const Values values :
       {kNormal, kConstant, kFew, kZeros, kTiny, kDense, kHuge, kShrinks, kGrows}) {
    LIGHTCC_TRACE("values " << kind++);
    for (const DataType dtype : kGpuTypes) {
      expect_same_steps({.dtype = dtype, .values = values, .sizes = {20001}});
    }
  }
}

TEST(CudaTopk, sizes_around_tiles_and_blocks_give_the_bits_of_the_cpu) {
  for (const std::size_t size : {1U, 2U, 31U, 8191U, 8192U, 8193U, 65536U, 65537U}) {
    expect_same_steps({.sizes = {size}, .ratio = 0.02, .steps = 3});
  }
}

TEST(CudaTopk, tensors_of_one_launch_do_not_mix) {
  expect_same_steps({.sizes = {9000, 1, 70000, 300, 8192}});
  expect_same_steps({.dtype = DataType::kBfloat16, .sizes = {500, 20000}, .momentum = 0.9});
  expect_same_steps({.dtype = DataType::kFloat16, .sizes = {1, 66000, 1}});
}

TEST(CudaTopk, exactly_k_with_ties_to_the_lower_index) {
  for (const DataType dtype : kGpuTypes) {
    expect_same_steps({.dtype = dtype, .values = kConstant, .sizes = {20000}, .exact = true});
    expect_same_steps(
        {.dtype = dtype, .values = kFew, .sizes = {20000}, .exact = true, .steps = 2});
  }
}

TEST(CudaTopk, a_list_of_everything_has_everything) {
  expect_same_steps({.values = kFew, .sizes = {20000}, .ratio = 1.0, .steps = 2});
}

TEST(CudaTopk, momentum_correction_gives_the_bits_of_the_cpu) {
  for (const DataType dtype : kGpuTypes) {
    expect_same_steps({.dtype = dtype, .sizes = {20001}, .momentum = 0.9});
  }
}

TEST(CudaTopk, shards_at_any_address_give_the_bits_of_the_cpu) {
  for (const DataType dtype : kGpuTypes) {
    for (const std::size_t shift : {1U, 2U, 4U, 8U}) {
      expect_same_steps({.dtype = dtype, .sizes = {9001}, .shift = shift, .steps = 2});
    }
  }
}

TEST(CudaTopk, float16_lists_with_scales_give_the_bits_of_the_cpu) {
  for (const Values values : {kNormal, kTiny, kHuge, kFew}) {
    expect_same_steps({.values = values, .sizes = {70000, 300}, .fp16 = true, .steps = 3});
  }
}

TEST(CudaTopk, long_runs_sample_other_groups_in_each_step) {
  EXPECT_GE(expect_same_steps({.sizes = {150000}, .ratio = 0.05, .steps = 6}), 3);
}

TEST(CudaTopk, a_step_that_is_skipped_leaves_the_state_as_it_was) {
  for (const double bad : {kInfinity, kNan}) {
    expect_same_steps({.sizes = {9000, 300}, .bad_step = 1, .bad = bad, .undone_step = 2});
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_test
