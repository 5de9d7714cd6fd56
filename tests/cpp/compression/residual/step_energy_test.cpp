// The residual of a step, beside what came in.
#include "lightcc/compression/residual/step_energy.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/residual_store.hpp"

namespace lightcc::step_energy_test {
namespace {

template <typename T>
const std::byte* bytes_of(const std::vector<T>& elements) {
  return std::as_bytes(std::span(elements)).data();
}

TEST(StepEnergy, small_shards_are_summed_as_a_whole) {
  for (const std::size_t numel : {0U, 1U, 17U, 1000U, 4095U}) {
    const std::vector<float> shard(numel, 2.0F);
    const std::vector<float> residual(numel, -0.5F);
    const StepEnergy energy =
        measure_energy(DataType::kFloat32, bytes_of(shard), bytes_of(residual), numel, 7);
    EXPECT_EQ(energy.input, 4.0 * static_cast<double>(numel));
    EXPECT_EQ(energy.kept, 0.25 * static_cast<double>(numel));
  }
}

TEST(StepEnergy, samples_of_all_steps_make_the_whole) {
  constexpr int kSteps = 128;  // A run of 64 in each of 32 parts, of which a step takes one.
  constexpr std::size_t kNumel = std::size_t{kSteps} * 64 * 32;
  std::vector<double> shard(kNumel);
  double exact = 0.0;
  for (std::size_t i = 0; i < kNumel; ++i) {
    shard[i] = static_cast<double>(i % 1000);
    exact += shard[i] * shard[i];
  }
  double sum = 0.0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const StepEnergy energy =
        measure_energy(DataType::kFloat64, bytes_of(shard), bytes_of(shard), kNumel, step);
    EXPECT_NEAR(energy.input, exact, 0.1 * exact);
    EXPECT_EQ(energy.input, energy.kept);
    sum += energy.input;
  }
  EXPECT_NEAR(sum / kSteps, exact, 1e-9 * exact);
}

TEST(StepEnergy, elements_have_their_dtype_and_no_shard_is_zeros) {
  const std::vector<std::uint16_t> bfloat16(10, 0x4040);  // 3.
  const std::vector<std::uint16_t> float16(10, 0x4200);
  const std::vector<float> residual(10, 1.0F);
  EXPECT_EQ(
      measure_energy(DataType::kBfloat16, bytes_of(bfloat16), bytes_of(residual), 10, 0).input,
      90.0);
  EXPECT_EQ(measure_energy(DataType::kFloat16, bytes_of(float16), bytes_of(residual), 10, 0).input,
            90.0);
  const StepEnergy none = measure_energy(DataType::kFloat32, nullptr, bytes_of(residual), 10, 0);
  EXPECT_EQ(none.input, 0.0);
  EXPECT_EQ(none.kept, 10.0);
}

TEST(StepEnergy, a_state_has_that_of_each_kind_of_step) {
  const std::vector<float> shard{3.0F, 1.0F, 1.0F, 1.0F};
  HostResidual state(DataType::kFloat32, shard.size());
  std::array<std::byte, 4096> list{};
  ASSERT_TRUE(state.compress(bytes_of(shard), {.k = 1, .capacity = 1, .exact = true}, list).ok());
  EXPECT_EQ(state.energy().input, 12.0);
  EXPECT_EQ(state.energy().kept, 3.0);
  state.commit();

  const ShardRange all{.begin = 0, .end = shard.size()};
  ASSERT_TRUE(state.quantize(bytes_of(shard), {&all, 1}, {}, Compressor::kInt8, list).ok());
  EXPECT_EQ(state.energy().input, 12.0);
  EXPECT_LT(state.energy().kept, 0.01);
  state.commit();
  const std::array<ShardRange, 2> parts{{{.begin = 0, .end = 1}, {.begin = 1, .end = 4}}};
  ASSERT_TRUE(state.quantize(bytes_of(shard), parts, 0, Compressor::kInt8, list).ok());
  EXPECT_EQ(state.energy().input, 3.0);  // Without the own part, whose sum is not there.
  EXPECT_LT(state.energy().kept, 0.01);
  state.rollback();

  std::vector<float> dense = shard;
  ASSERT_TRUE(state.flush_into(std::as_writable_bytes(std::span(dense)).data()).ok());
  EXPECT_NEAR(state.energy().input, 12.0, 0.2);
  EXPECT_EQ(state.energy().kept, 0.0);
}

TEST(StepEnergy, usage_forgets_steps_of_long_ago_and_follows_a_scale) {
  CompressionUsage usage;
  usage.add({.input = 8.0, .kept = 2.0});
  usage.add({.input = 4.0, .kept = 4.0});
  EXPECT_EQ(usage.energy.input, 6.0);
  EXPECT_EQ(usage.energy.kept, 3.0);
  usage.add({.input = std::numeric_limits<double>::infinity(), .kept = 1.0});
  EXPECT_EQ(usage.energy.input, 6.0);
  usage.scale(2.0);
  EXPECT_EQ(usage.energy.input, 24.0);
  for (int step = 0; step < 2000; ++step) {
    usage.add({.input = 1.0, .kept = 0.0});
  }
  EXPECT_NEAR(usage.energy.input, 1.0, 1e-6);
  EXPECT_NEAR(usage.energy.kept, 0.0, 1e-6);
}

}  // namespace
}  // namespace lightcc::step_energy_test
