// What is carried from step to step: velocity with momentum, and what flush and scale do to it.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/residual/host_residual.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::topk_flush_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

TEST(TopkMomentum, follows_the_definition_and_clears_what_is_sent) {
  Rng rng(8);
  const std::size_t numel = 300;
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      HostResidual state(dtype, numel);
      std::vector<double> u(numel, 0.0);
      TopkRequest request = exactly(30, level);
      request.momentum = 0.875;
      for (int step = 0; step < 6; ++step) {
        const Buffer shard = tensor_of(dtype, normal_values(rng, numel));
        std::vector<double> acc(numel);
        for (std::size_t i = 0; i < numel; ++i) {
          u[i] = multiply_add(dtype, u[i], request.momentum, get(dtype, shard.data(), i));
          acc[i] = multiply_add(dtype, 1.0, u[i], state.residual_at(i));
        }
        const StepResult result = compress(state, shard, request);
        state.commit();
        ASSERT_TRUE(state.has_velocity());
        const auto sent = entries_of(parsed(result.list, numel, {.dtype = dtype}));
        expect_nothing_is_lost(acc, sent, residual_of(state));
        for (const Entry& entry : sent) {
          u[entry.index] = 0.0;
        }
        for (std::size_t i = 0; i < numel; ++i) {
          ASSERT_EQ(state.velocity_at(i), u[i]);
        }
      }
    }
  }
}

TEST(TopkMomentum, ties_that_are_put_back_keep_their_velocity) {
  HostResidual state(DataType::kFloat32, 8);
  TopkRequest request = exactly(3, detect_simd_level());
  request.momentum = 0.5;
  compress(state, tensor_of(DataType::kFloat32, std::vector<double>(8, 2.0)), request);
  state.commit();
  EXPECT_EQ(state.velocity_at(2), 0.0);
  EXPECT_EQ(state.velocity_at(3), 2.0);
  EXPECT_EQ(state.residual_at(3), 2.0);
}

TEST(TopkFlush, adds_the_residual_and_clears_it) {
  Rng rng(9);
  const std::size_t numel = 9000;
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      HostResidual state(dtype, numel);
      compress(state, tensor_of(dtype, normal_values(rng, numel)), exactly(90, level));
      state.commit();
      Buffer shard = tensor_of(dtype, normal_values(rng, numel));
      const std::vector<double> acc = accumulated(state, shard);
      const Buffer before = saved(state);
      ASSERT_TRUE(state.flush_into(shard.data(), 0.0, level).ok());
      state.rollback();
      ASSERT_EQ(saved(state), before);
      shard = tensor_of(dtype, normal_values(rng, numel));
      const std::vector<double> acc2 = accumulated(state, shard);
      ASSERT_TRUE(state.flush_into(shard.data(), 0.0, level).ok());
      state.commit();
      for (std::size_t i = 0; i < numel; ++i) {
        ASSERT_EQ(get(dtype, shard.data(), i), rounded(dtype, acc2[i]));
        ASSERT_EQ(get(dtype, shard.data(), i) + state.residual_at(i), acc2[i]);
      }
      EXPECT_EQ(state.threshold(), 0.0);
    }
  }
}

TEST(TopkFlush, of_a_shard_that_is_not_finite_says_so_in_the_shard_and_is_undone) {
  HostResidual state(DataType::kFloat16, 4);
  compress(
      state, tensor_of(DataType::kFloat16, {1.0, 2.0, 3.0, 4.0}), exactly(1, SimdLevel::kPlain));
  state.commit();
  const Buffer before = saved(state);
  Buffer shard = tensor_of(DataType::kFloat16, {kInfinity, 1.0, kNan, 1.0});
  ASSERT_TRUE(state.flush_into(shard.data()).ok());
  state.commit();
  EXPECT_EQ(get(DataType::kFloat16, shard.data(), 0), kInfinity);
  EXPECT_TRUE(std::isnan(get(DataType::kFloat16, shard.data(), 2)));
  EXPECT_EQ(saved(state), before);
}

TEST(TopkFlush, sends_residual_and_velocity_with_momentum) {
  HostResidual state(DataType::kFloat32, 2);
  TopkRequest request = exactly(1, SimdLevel::kPlain);
  request.momentum = 0.5;
  compress(state, tensor_of(DataType::kFloat32, {8.0, 4.0}), request);
  state.commit();
  Buffer shard = tensor_of(DataType::kFloat32, {1.0, 1.0});
  ASSERT_TRUE(state.flush_into(shard.data(), 0.5).ok());
  state.commit();
  EXPECT_EQ(get(DataType::kFloat32, shard.data(), 0), 1.0);
  EXPECT_EQ(get(DataType::kFloat32, shard.data(), 1), 4.0 + (0.5 * 4.0 + 1.0));
  EXPECT_EQ(state.velocity_at(1), 0.0);
  EXPECT_EQ(state.residual_at(1), 0.0);
}

TEST(TopkScale, multiplies_what_is_carried) {
  Rng rng(10);
  for (const DataType dtype : kFloatTypes) {
    HostResidual state(dtype, 1000);
    TopkRequest request = about(10, 1000, detect_simd_level());
    request.momentum = 0.5;
    compress(state, tensor_of(dtype, normal_values(rng, 1000)), request);
    state.commit();
    const std::vector<double> before = residual_of(state);
    const double velocity = state.velocity_at(500);
    const double threshold = state.threshold();
    ASSERT_TRUE(state.scale(0.25).ok());
    EXPECT_EQ(state.threshold(), threshold * 0.25);
    EXPECT_EQ(state.velocity_at(500), velocity * 0.25);
    for (std::size_t i = 0; i < before.size(); ++i) {
      ASSERT_EQ(state.residual_at(i), before[i] * 0.25);
    }
  }
}

TEST(TopkScale, leaves_zeros_and_stays_finite_at_factors_beyond_the_lanes_range) {
  HostResidual state(DataType::kFloat32, 3);
  compress(state, tensor_of(DataType::kFloat32, {8.0, 4.0, 0.0}), exactly(1, SimdLevel::kPlain));
  state.commit();
  ASSERT_TRUE(state.scale(1e300).ok());
  EXPECT_EQ(state.residual_at(1), static_cast<double>(std::numeric_limits<float>::max()));
  EXPECT_EQ(state.residual_at(2), 0.0);
  ASSERT_TRUE(state.scale(1e-300).ok());
  ASSERT_TRUE(state.scale(1e300).ok());
  EXPECT_EQ(residual_of(state), std::vector<double>(3, 0.0));
}

TEST(TopkScale, by_what_is_no_scale_is_an_error) {
  HostResidual state(DataType::kFloat32, 2);
  for (const double factor : {0.0, -1.0, kInfinity, kNan}) {
    EXPECT_EQ(state.scale(factor).code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace lightcc::topk_flush_test
