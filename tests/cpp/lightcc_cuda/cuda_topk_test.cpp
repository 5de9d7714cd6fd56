// Top-k compression on the simulator, against HostResidual: lists, residuals, velocities and
// thresholds must have the same bits, step after step.
#include <limits>

#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/topk_on_gpu.hpp"

namespace lightcc::cuda::cuda_topk_test {
namespace {

using lightcc::testing::draw_normal;
using lightcc::testing::kFloatTypes;
using lightcc::testing::put;
using testing::commit_topk_step;
using testing::PackedStep;
using testing::Region;
using testing::run_topk_step;
using testing::seed;
using testing::TopkOnGpu;

enum class Values : std::uint8_t {
  kNormal,
  kConstant,  // Ties everywhere.
  kFew,       // Most are zero: fewer than k are not.
  kZeros,
  kTiny,       // Subnormal numbers.
  kDenseRuns,  // Some blocks have all the large ones.
  kHuge,       // Sums are near the end of the type.
  kShrinking,  // The forecast is too high in the next step.
  kGrowing,    // The forecast is too low: more than fits.
};

double draw(Values values, std::size_t i, std::uint64_t step, DataType dtype, Rng& rng) {
  const double normal = draw_normal(rng);
  switch (values) {
    case Values::kNormal:
      return normal;
    case Values::kConstant:
      return i % 3 == 0 ? -1.5 : 1.5;
    case Values::kFew:
      return rng.below(400) == 0 ? normal : 0.0;
    case Values::kZeros:
      return i % 2 == 0 ? 0.0 : -0.0;
    case Values::kTiny:
      return normal * (dtype == DataType::kFloat64   ? 1e-310
                       : dtype == DataType::kFloat16 ? 1e-6
                                                     : 1e-40);
    case Values::kDenseRuns:
      return normal * (i / 3000 % 5 == 0 ? 50.0 : 1.0);
    case Values::kHuge:
      return normal * (dtype == DataType::kFloat64   ? 1e307
                       : dtype == DataType::kFloat16 ? 1e4
                                                     : 5e37);
    case Values::kShrinking:
      return normal * (step % 2 == 0 ? 1000.0 : 1e-3);
    case Values::kGrowing:
      return normal * (step % 2 == 0 ? 1.0 : 1e4);
  }
  return 0.0;
}

struct Tensor {
  Tensor(DataType type, std::size_t numel, bool has_momentum)
      : dtype(type), cpu(type, numel), gpu(type, numel, has_momentum) {}

  DataType dtype;
  HostResidual cpu;
  TopkOnGpu gpu;
};

void expect_same_state(const Tensor& tensor, bool has_momentum) {
  const TopkProgress& progress = tensor.gpu.progress();
  EXPECT_EQ(progress.step, tensor.cpu.step());
  EXPECT_EQ(std::bit_cast<u64>(progress.forecast.threshold),
            std::bit_cast<u64>(tensor.cpu.threshold()));
  for (std::size_t i = 0; i < tensor.cpu.numel(); ++i) {
    ASSERT_EQ(std::bit_cast<u64>(tensor.gpu.residual_at(i)),
              std::bit_cast<u64>(tensor.cpu.residual_at(i)))
        << "residual " << i << ": " << tensor.gpu.residual_at(i) << ", not "
        << tensor.cpu.residual_at(i);
    if (has_momentum) {
      ASSERT_EQ(std::bit_cast<u64>(tensor.gpu.velocity_at(i)),
                std::bit_cast<u64>(tensor.cpu.velocity_at(i)))
          << "velocity " << i;
    }
  }
}

struct Case {
  DataType dtype = DataType::kFloat32;
  Values values = Values::kNormal;
  std::vector<std::size_t> sizes;
  double ratio = 0.01;
  bool exact = false;
  bool fp16 = false;
  double momentum = 0.0;
  std::size_t shift = 0;  ///< How far shards are from an aligned address.
  std::uint64_t steps = 4;
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
    LIGHTCC_TRACE(data_type_name(c.dtype)
                  << ", values " << static_cast<int>(c.values) << ", step " << step);
    const TopkFormat format{.dtype = c.dtype, .fp16 = c.fp16};
    std::vector<Region> shards;
    std::vector<TopkTensor> rows;
    std::vector<std::vector<std::byte>> lists;
    bool is_skipped = false;
    u64 first = 0;
    for (const std::size_t size : c.sizes) {
      Region& shard = shards.emplace_back(size * element_size(c.dtype), c.shift);
      for (std::size_t i = 0; i < size; ++i) {
        put(c.dtype, shard.bytes(), i, draw(c.values, i, step, c.dtype, rng));
      }
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
      is_skipped = is_skipped || outcome->non_finite;
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
      is_skipped ? tensors[i].cpu.rollback() : tensors[i].cpu.commit();
    }
    if (!is_skipped) {
      commit_topk_step(rows, rng);
    }
    for (const Tensor& tensor : tensors) {
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
  for (const Values values : {Values::kNormal,
                              Values::kConstant,
                              Values::kFew,
                              Values::kZeros,
                              Values::kTiny,
                              Values::kDenseRuns,
                              Values::kHuge,
                              Values::kShrinking,
                              Values::kGrowing}) {
    for (const DataType dtype : kFloatTypes) {
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
  expect_same_steps({.dtype = DataType::kFloat64, .sizes = {1, 66000, 1}, .fp16 = true});
}

TEST(CudaTopk, exactly_k_with_ties_to_the_lower_index) {
  for (const DataType dtype : kFloatTypes) {
    expect_same_steps(
        {.dtype = dtype, .values = Values::kConstant, .sizes = {20000}, .exact = true});
    expect_same_steps(
        {.dtype = dtype, .values = Values::kFew, .sizes = {20000}, .exact = true, .steps = 2});
  }
}

TEST(CudaTopk, a_list_of_everything_has_everything) {
  expect_same_steps({.values = Values::kFew, .sizes = {20000}, .ratio = 1.0, .steps = 2});
}

TEST(CudaTopk, momentum_correction_gives_the_bits_of_the_cpu) {
  for (const DataType dtype : kFloatTypes) {
    expect_same_steps({.dtype = dtype, .sizes = {20001}, .momentum = 0.9});
  }
}

TEST(CudaTopk, shards_at_any_address_give_the_bits_of_the_cpu) {
  for (const DataType dtype : kFloatTypes) {
    for (const std::size_t shift : {1U, 2U, 4U, 8U}) {
      expect_same_steps({.dtype = dtype, .sizes = {9001}, .shift = shift, .steps = 2});
    }
  }
}

TEST(CudaTopk, float16_lists_with_scales_give_the_bits_of_the_cpu) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    for (const Values values : {Values::kNormal, Values::kTiny, Values::kHuge, Values::kFew}) {
      expect_same_steps(
          {.dtype = dtype, .values = values, .sizes = {70000, 300}, .fp16 = true, .steps = 3});
    }
  }
}

TEST(CudaTopk, long_runs_sample_other_groups_in_each_step) {
  EXPECT_GE(expect_same_steps({.sizes = {150000}, .ratio = 0.05, .steps = 6}), 3);
}

TEST(CudaTopk, a_step_that_is_skipped_leaves_the_state_as_it_was) {
  Rng rng(seed());
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    TopkOnGpu gpu(DataType::kFloat32, 9000, false);
    Region shard(9000 * sizeof(float));
    const TopkRequest request{.k = 90, .capacity = 112};
    for (std::uint64_t step = 0; step < 3; ++step) {
      LIGHTCC_TRACE(bad << ", step " << step);
      for (std::size_t i = 0; i < 9000; ++i) {
        put(DataType::kFloat32, shard.bytes(), i, draw_normal(rng));
      }
      if (step == 1) {
        put(DataType::kFloat32, shard.bytes(), rng.below(9000), bad);
      }
      const auto rows = std::vector{gpu.row(0, shard.data(), request)};
      const TopkProgress before = gpu.progress();
      const PackedStep packed = run_topk_step(rows, DataType::kFloat32, rng);
      const bool flagged = (packed.lists(rows).front()[5] & std::byte{1}) != std::byte{0};
      EXPECT_EQ(flagged, step == 1);
      EXPECT_EQ(packed.report(0).non_finite, step == 1 ? 1U : 0U);
      if (step != 2) {  // It is skipped because of another rank.
        commit_topk_step(rows, rng);
      }
      EXPECT_EQ(gpu.progress().step, 1U);
      EXPECT_EQ(gpu.progress().current, step == 0 ? 1 - before.current : before.current);
      EXPECT_EQ(gpu.progress().forecast.threshold == before.forecast.threshold, step != 0);
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_test
