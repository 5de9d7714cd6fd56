// The states of a tensor before and after a step, of which a failure may need either one.
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/quantize.hpp"
#include "lightcc/compression/topk_host_kernels.hpp"
#include "lightcc/compression/topk_state.hpp"
#include "lightcc/compression/topk_store.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::topk_moments_test {
namespace {

using testing::about;
using testing::Buffer;
using testing::compress;
using testing::kFloatTypes;
using testing::kNan;
using testing::normal_values;
using testing::saved;
using testing::tensor_of;

constexpr std::size_t kNumel = 1000;

Buffer saved_other(const TopkState& state) {
  Buffer bytes;
  const Status status = state.save_other(bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

TopkRequest request_with(double momentum) {
  TopkRequest request = about(20, kNumel, detect_simd_level());
  request.momentum = momentum;
  return request;
}

TEST(TopkOther, is_what_was_before_the_last_step_bit_for_bit) {
  Rng rng(1);
  for (const DataType dtype : kFloatTypes) {
    for (const double momentum : {0.0, 0.9}) {
      TopkState state(dtype, kNumel);
      EXPECT_FALSE(state.other_step());
      for (std::uint64_t step = 0; step < 4; ++step) {
        const Buffer before = saved(state);
        const Buffer shard = tensor_of(dtype, normal_values(rng, kNumel));
        compress(state, shard, request_with(momentum));
        EXPECT_FALSE(state.other_step());  // Its lanes are those of the pending step.
        state.commit();
        ASSERT_EQ(state.other_step(), std::optional(step));
        ASSERT_EQ(saved_other(state), before);
      }
    }
  }
}

TEST(TopkOther, is_what_a_step_would_have_made_that_was_rolled_back) {
  Rng rng(2);
  for (const DataType dtype : kFloatTypes) {
    for (const double momentum : {0.0, 0.9}) {
      TopkState state(dtype, kNumel);
      for (std::uint64_t step = 0; step < 4; ++step) {
        const Buffer before = saved(state);
        const Buffer shard = tensor_of(dtype, normal_values(rng, kNumel));
        compress(state, shard, request_with(momentum));
        state.rollback();
        ASSERT_EQ(saved(state), before);
        // The first step makes the velocity, which goes with it.
        const bool is_there = momentum == 0.0 || step > 0;
        ASSERT_EQ(state.other_step(), is_there ? std::optional(step + 1) : std::nullopt);
        const Buffer after = is_there ? saved_other(state) : Buffer();
        compress(state, shard, request_with(momentum));
        state.commit();
        if (is_there) {
          ASSERT_EQ(after, saved(state));
        }
      }
    }
  }
}

TEST(TopkOther, is_there_for_steps_of_all_kinds) {
  Rng rng(3);
  TopkState state(DataType::kFloat32, kNumel);
  Buffer shard = tensor_of(DataType::kFloat32, normal_values(rng, kNumel));
  const std::vector<ShardRange> parts{{0, kNumel}};
  const Buffer zeros(quantized_bytes(kNumel, 4));
  const std::vector<std::span<const std::byte>> others{zeros, zeros};
  Buffer codes(zeros.size());
  for (const bool is_committed : {true, false, true}) {
    for (const bool is_dense : {true, false}) {
      const Buffer before = saved(state);
      if (is_dense) {
        ASSERT_TRUE(state.flush_into(shard.data()).ok());
      } else {
        ASSERT_TRUE(*state.quantize(shard.data(), parts, 0, Compressor::kInt4, {}));
        ASSERT_TRUE(*state.quantize_sum(others, parts[0], Compressor::kInt4, codes));
      }
      if (is_committed) {
        state.commit();
        EXPECT_EQ(saved_other(state), before);
      } else {
        state.rollback();
        EXPECT_EQ(saved(state), before);
        EXPECT_EQ(TopkState::load(saved_other(state))->step(), state.step() + 1);
      }
    }
  }
}

TEST(TopkOther, is_not_there_where_it_would_be_wrong) {
  Rng rng(4);
  TopkState state(DataType::kFloat32, kNumel);
  std::vector<double> values = normal_values(rng, kNumel);
  const Buffer shard = tensor_of(DataType::kFloat32, values);
  compress(state, shard, request_with(0.0));
  state.commit();
  ASSERT_TRUE(state.other_step());
  EXPECT_FALSE(TopkState::load(saved(state))->other_step());
  ASSERT_TRUE(state.scale(2.0).ok());
  EXPECT_FALSE(state.other_step());  // It is not scaled.
  Buffer bytes;
  EXPECT_EQ(state.save_other(bytes).code(), ErrorCode::kInternal);
  EXPECT_TRUE(bytes.empty());
  values[3] = kNan;
  compress(state, tensor_of(DataType::kFloat32, values), request_with(0.0));
  state.commit();  // Is a rollback.
  EXPECT_FALSE(state.other_step());
  compress(state, shard, request_with(0.9));
  state.commit();
  EXPECT_TRUE(state.other_step());
  compress(state, shard, request_with(0.0));
  state.commit();
  EXPECT_FALSE(state.other_step());  // The velocity that it had is gone.
}

// --- In a store ---------------------------------------------------------------------------------

const TopkStore::Key kKey{0, "a"};
const GridPosition kPosition{.blocks = 2};

class TopkMomentsInAStore : public ::testing::Test {
 protected:
  TopkEntry& entry() {
    return **store_.entry(kKey, kPosition, DataType::kFloat32, kNumel, kernels_);
  }

  /// As an item does, whose step comes to its end, or does not.
  void step(bool ends, bool is_void = false) {
    TopkEntry& one = entry();
    one.state_stayed = false;
    one.is_cut_off = false;
    const Buffer shard = tensor_of(DataType::kFloat32, normal_values(rng_, kNumel));
    Buffer list(10000);
    TopkOutcome outcome;
    ASSERT_TRUE(one.state->compress(shard.data(), request_with(0.0), list, outcome).ok());
    if (!ends) {
      one.other_steps = one.steps + 1;
      one.is_cut_off = true;
      one.state->rollback();
      return;
    }
    one.other_steps = one.steps++;
    one.state_stayed = is_void;
    is_void ? one.state->rollback() : one.state->commit();
  }

  Bytes saved_now() { return store_.save()->front().second; }

  TopkMoments moments() { return store_.moments().front().second; }

  /// The state of the moment, or no bytes.
  Bytes state_at(std::uint64_t steps, std::uint64_t counted) {
    const TopkMoments all = moments();
    const Bytes* const state = testing::state_at(all, {.steps = steps, .counted = counted});
    return state == nullptr ? Bytes() : *state;
  }

  HostTopkKernels kernels_{SimdLevel::kPlain};
  TopkStore store_{kernels_};
  Rng rng_{5};
};

TEST_F(TopkMomentsInAStore, are_told_of_a_step_that_came_to_its_end) {
  step(true);
  store_.mark();
  const Bytes before = saved_now();
  EXPECT_EQ(moments().marked, (TopkSteps{.steps = 1, .counted = 1}));
  EXPECT_EQ(state_at(1, 1), before);
  step(true);
  EXPECT_EQ(moments().marked, (TopkSteps{.steps = 1, .counted = 1}));
  EXPECT_EQ(state_at(1, 1), before);
  EXPECT_EQ(state_at(2, 2), saved_now());
  EXPECT_EQ(moments().states.size(), 2U);
}

TEST_F(TopkMomentsInAStore, are_told_of_a_step_that_was_cut_off) {
  step(true);
  const Bytes before = saved_now();
  const Rng draws = rng_;
  step(false);
  EXPECT_EQ(state_at(1, 1), before);
  const Bytes after = state_at(2, 2);
  EXPECT_FALSE(state_at(2, 1).empty());  // Others may have found it void.
  rng_ = draws;
  step(true);
  EXPECT_EQ(after, saved_now());
}

TEST_F(TopkMomentsInAStore, of_a_void_step_are_the_same_state) {
  step(true);
  const Bytes before = saved_now();
  step(true, true);
  EXPECT_EQ(state_at(1, 1), before);
  EXPECT_EQ(state_at(2, 1), saved_now());
  EXPECT_NE(saved_now(), before);  // It has counted the step.
}

TEST_F(TopkMomentsInAStore, of_a_tensor_on_its_way_and_of_a_new_one_are_not_there) {
  store_.mark();
  step(true);
  EXPECT_FALSE(moments().marked);
  EXPECT_EQ(moments().states.size(), 2U);  // Nothing kept back, and now.
  const Buffer shard = tensor_of(DataType::kFloat32, normal_values(rng_, kNumel));
  Buffer list(10000);
  TopkOutcome outcome;
  TopkShardState& state = *entry().state;
  ASSERT_TRUE(state.compress(shard.data(), request_with(0.0), list, outcome).ok());
  EXPECT_TRUE(moments().states.empty());
  state.rollback();
  EXPECT_FALSE(moments().states.empty());
}

TEST_F(TopkMomentsInAStore, can_be_loaded) {
  step(true);
  const Bytes before = saved_now();
  step(true);
  ASSERT_TRUE(store_.load(kKey, state_at(1, 1)).ok());
  EXPECT_EQ(saved_now(), before);
  EXPECT_EQ(moments().states.size(), 1U);
}

}  // namespace
}  // namespace lightcc::topk_moments_test
