// What is kept back goes from one who applies momentum to the other, and weights get all of it.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/topk_state.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::topk_momentum_test {
namespace {

using testing::Buffer;
using testing::compress;
using testing::entries_of;
using testing::Entry;
using testing::exactly;
using testing::kFloatTypes;
using testing::normal_values;
using testing::parsed;
using testing::residual_of;
using testing::saved;
using testing::tensor_of;

TopkRequest request_of(std::size_t k, double momentum) {
  TopkRequest request = exactly(k, SimdLevel::kPlain);
  request.momentum = momentum;
  return request;
}

TEST(TopkMomentumMoved, here_is_as_if_the_next_gradient_had_it) {
  Rng rng(12);
  const std::size_t numel = 100;
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    TopkState state(dtype, numel);
    compress(state, tensor_of(dtype, normal_values(rng, numel)), request_of(5, 0.0));
    state.commit();
    const std::vector<double> kept = residual_of(state);
    const auto moved = state.move_momentum(true, 0.5);
    ASSERT_TRUE(moved.ok());
    EXPECT_TRUE(*moved);
    EXPECT_EQ(state.threshold(), 0.0);
    for (const double value : residual_of(state)) {
      ASSERT_EQ(value, 0.0);
    }
    const Buffer zeros = tensor_of(dtype, std::vector<double>(numel, 0.0));
    const auto step = compress(state, zeros, request_of(5, 0.5));
    state.commit();
    std::vector<double> expected = kept;
    for (const Entry& entry : entries_of(parsed(step.list, numel, {.dtype = dtype}))) {
      EXPECT_EQ(entry.value, kept[entry.index]);
      expected[entry.index] = 0.0;
    }
    for (std::size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(state.residual_at(i), expected[i]);
      ASSERT_EQ(state.velocity_at(i), expected[i]);
    }
  }
}

TEST(TopkMomentumMoved, back_keeps_what_weights_will_get_in_the_long_run) {
  Rng rng(13);
  const std::size_t numel = 64;
  const double momentum = 0.75;
  for (const DataType dtype : kFloatTypes) {
    TopkState state(dtype, numel);
    for (int step = 0; step < 4; ++step) {
      compress(state, tensor_of(dtype, normal_values(rng, numel)), request_of(4, momentum));
      state.commit();
    }
    // A residual arrives once, and a velocity m + m^2 + ... times.
    std::vector<double> owed(numel);
    for (std::size_t i = 0; i < numel; ++i) {
      owed[i] = state.residual_at(i) + momentum / (1.0 - momentum) * state.velocity_at(i);
    }
    ASSERT_TRUE(*state.move_momentum(false, momentum));
    EXPECT_FALSE(state.has_velocity());
    for (std::size_t i = 0; i < numel; ++i) {
      // The optimizer makes 1 / (1 - m) times as much of it.
      ASSERT_NEAR(state.residual_at(i) / (1.0 - momentum), owed[i], 1e-5 * (1 + std::abs(owed[i])));
    }
  }
}

TEST(TopkMomentumMoved, what_fits_already_stays_as_it_is) {
  TopkState state(DataType::kFloat32, 3);
  compress(state, tensor_of(DataType::kFloat32, {8.0, 4.0, 1.0}), request_of(1, 0.0));
  state.commit();
  const Buffer before = saved(state);
  EXPECT_FALSE(*state.move_momentum(false, 0.5));
  EXPECT_EQ(saved(state), before);
  ASSERT_TRUE(*state.move_momentum(true, 0.5));
  const Buffer moved = saved(state);
  EXPECT_FALSE(*state.move_momentum(true, 0.25));
  EXPECT_EQ(saved(state), moved);
  const auto loaded = TopkState::load(moved);
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE(loaded->has_velocity());
}

TEST(TopkMomentumMoved, stays_finite) {
  constexpr double kMax = std::numeric_limits<float>::max();
  TopkState state(DataType::kFloat32, 2);
  compress(state, tensor_of(DataType::kFloat32, {kMax, -kMax}), request_of(1, 0.0));
  state.commit();
  ASSERT_TRUE(*state.move_momentum(true, 0.5));
  EXPECT_EQ(state.velocity_at(1), -kMax);
}

TEST(TopkMomentumMoved, errors_change_nothing) {
  TopkState state(DataType::kFloat32, 3);
  const Buffer before = saved(state);
  for (const double momentum : {-0.5, 1.0, std::nan("")}) {
    for (const bool here : {false, true}) {
      EXPECT_EQ(state.move_momentum(here, momentum).status().code(), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_EQ(state.move_momentum(true, 0.0).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(saved(state), before);
  compress(state, tensor_of(DataType::kFloat32, {8.0, 4.0, 1.0}), request_of(1, 0.0));
  EXPECT_EQ(state.move_momentum(true, 0.5).status().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace lightcc::topk_momentum_test
