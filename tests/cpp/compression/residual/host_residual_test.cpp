// Steps against the sorting reference: every dtype and SIMD level, exact and by threshold, special
// values, fp16; and what commit and rollback leave behind.
#include "lightcc/compression/residual/host_residual.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::host_residual_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

/// One exact step of `state` on `shard` must do what the reference does.
void expect_exact_step(HostResidual& state, const Buffer& shard, std::size_t k, SimdLevel level) {
  const std::vector<double> acc = accumulated(state, shard);
  const StepResult step = compress(state, shard, exactly(k, level));
  state.commit();
  ASSERT_EQ(step.outcome.count, k);
  ASSERT_FALSE(step.outcome.non_finite);
  const auto view = parsed(step.list, acc.size(), {.dtype = state.dtype()});
  std::vector<Entry> expected = largest(acc, k);
  for (Entry& entry : expected) {
    entry.value = rounded(state.dtype(), entry.value);
  }
  const std::vector<Entry> sent = entries_of(view);
  ASSERT_EQ(sent, expected);
  expect_nothing_is_lost(acc, sent, residual_of(state));
}

TEST(TopkExact, is_the_reference_for_all_small_sizes_types_and_levels) {
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      Rng rng(1);
      for (std::size_t numel = 1; numel <= 300; numel += numel < 70 ? 1 : 23) {
        for (const std::size_t k : {std::size_t{1}, (numel + 6) / 7, numel}) {
          SCOPED_TRACE(std::string(simd_level_name(level)) + " " + data_type_name(dtype) + " " +
                       std::to_string(numel) + " " + std::to_string(k));
          HostResidual state(dtype, numel);
          for (int step = 0; step < 3; ++step) {
            expect_exact_step(state, tensor_of(dtype, normal_values(rng, numel)), k, level);
          }
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST(TopkExact, is_the_reference_around_the_borders_of_blocks) {
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      Rng rng(2);
      for (const std::size_t numel :
           {kTopkBlockElems - 1, kTopkBlockElems, kTopkBlockElems + 1, 2 * kTopkBlockElems + 77}) {
        HostResidual state(dtype, numel);
        for (int step = 0; step < 2; ++step) {
          expect_exact_step(state, tensor_of(dtype, normal_values(rng, numel)), numel / 50, level);
        }
      }
    }
  }
}

TEST(TopkExact, gives_ties_to_the_lower_index) {
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      for (const double value : {1.0, -2.5, 0.0}) {
        HostResidual state(dtype, 70000);
        const Buffer shard = tensor_of(dtype, std::vector<double>(70000, value));
        expect_exact_step(state, shard, 66000, level);
        expect_exact_step(state, shard, 5, level);
      }
    }
  }
}

TEST(TopkExact, finds_the_threshold_in_a_constant_tensor_without_much_memory) {
  // 2^20 elements in one bin of the histogram, whatever its bits: refined down to the last one.
  const std::size_t numel = std::size_t{1} << 20;
  std::vector<double> values(numel, 3.0);
  values[numel - 1] = 4.0;
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    HostResidual state(dtype, numel);
    expect_exact_step(state, tensor_of(dtype, values), 1000, detect_simd_level());
  }
}

TEST(TopkExact, orders_denormals_and_zeros_by_magnitude) {
  const std::vector<double> values = {0.0, -1e-40, 1e-40, -0.0, 2e-45, -1e-38, 0.0, 1e-44};
  for (const SimdLevel level : levels()) {
    for (std::size_t k = 1; k <= values.size(); ++k) {
      HostResidual state(DataType::kFloat32, values.size());
      expect_exact_step(state, tensor_of(DataType::kFloat32, values), k, level);
    }
  }
}

TEST(TopkExact, sends_zeros_as_zeros_when_there_is_nothing_else) {
  // A residual begins at 0.0, and -0.0 + 0.0 is 0.0.
  HostResidual state(DataType::kFloat32, 2);
  const StepResult step =
      compress(state, tensor_of(DataType::kFloat32, {-0.0, -0.0}), exactly(2, SimdLevel::kPlain));
  const auto sent = entries_of(parsed(step.list, 2, {}));
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_FALSE(std::signbit(sent[0].value));
}

TEST(TopkThreshold, the_first_step_sends_exactly_k) {
  Rng rng(3);
  HostResidual state(DataType::kFloat32, 10000);
  const StepResult step = compress(state,
                                   tensor_of(DataType::kFloat32, normal_values(rng, 10000)),
                                   about(100, 10000, detect_simd_level()));
  EXPECT_EQ(step.outcome.count, 100U);
  EXPECT_EQ(step.outcome.passes, 3);
}

/// 20 steps: what is sent is what is largest, and nothing is lost.
void expect_threshold_steps(DataType dtype, std::size_t numel, std::size_t k, SimdLevel level) {
  Rng rng(4);
  HostResidual state(dtype, numel);
  for (int step = 0; step < 20; ++step) {
    const Buffer shard = tensor_of(dtype, normal_values(rng, numel));
    const std::vector<double> acc = accumulated(state, shard);
    const TopkRequest request = about(k, numel, level);
    const StepResult result = compress(state, shard, request);
    state.commit();
    ASSERT_LE(result.outcome.count, request.capacity);
    ASSERT_GE(3 * result.outcome.count, 2 * k);
    const auto view = parsed(result.list, numel, {.dtype = dtype});
    const std::vector<Entry> sent = entries_of(view);
    ASSERT_EQ(sent.size(), result.outcome.count);
    std::vector<Entry> expected = largest(acc, sent.size());
    for (Entry& entry : expected) {
      entry.value = rounded(dtype, entry.value);
    }
    ASSERT_EQ(sent, expected);
    expect_nothing_is_lost(acc, sent, residual_of(state));
  }
}

TEST(TopkThreshold, sends_what_is_largest_and_loses_nothing) {
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      for (const auto& [numel, k] : {std::pair<std::size_t, std::size_t>{1, 1},
                                     {2, 1},
                                     {300, 3},
                                     {299, 100},
                                     {20000, 200},
                                     {70001, 7000}}) {
        SCOPED_TRACE(std::string(simd_level_name(level)) + " " + data_type_name(dtype) + " " +
                     std::to_string(numel));
        expect_threshold_steps(dtype, numel, k, level);
      }
    }
  }
}

TEST(TopkThreshold, all_elements_travel_when_k_is_all_zeros_among_them) {
  for (const SimdLevel level : levels()) {
    HostResidual state(DataType::kFloat32, 5);
    const StepResult step = compress(
        state, tensor_of(DataType::kFloat32, {0.0, 1.0, 0.0, -2.0, 0.0}), about(5, 5, level));
    EXPECT_EQ(step.outcome.count, 5U);
    EXPECT_EQ(step.outcome.passes, 1);
  }
}

TEST(TopkThreshold, zeros_do_not_travel_and_cost_one_pass) {
  const std::size_t numel = 5000;
  std::vector<double> values(numel, 0.0);
  values[17] = -1.0;
  values[4999] = 1e-30;
  for (const SimdLevel level : levels()) {
    HostResidual state(DataType::kFloat32, numel);
    for (int step = 0; step < 4; ++step) {
      const StepResult result =
          compress(state, tensor_of(DataType::kFloat32, values), about(50, numel, level));
      state.commit();
      EXPECT_EQ(entries_of(parsed(result.list, numel, {})),
                (std::vector<Entry>{{17, -1.0}, {4999, static_cast<double>(1e-30F)}}));
      EXPECT_EQ(result.outcome.passes, step == 0 ? 3 : 1);
    }
  }
}

TEST(TopkThreshold, all_zeros_give_empty_lists_for_ever) {
  HostResidual state(DataType::kBfloat16, 300);
  const Buffer shard = tensor_of(DataType::kBfloat16, std::vector<double>(300, 0.0));
  for (int step = 0; step < 4; ++step) {
    const StepResult result = compress(state, shard, about(30, 300, detect_simd_level()));
    state.commit();
    EXPECT_EQ(result.outcome.count, 0U);
    EXPECT_EQ(result.outcome.passes, step == 0 ? 3 : 1);
  }
}

TEST(TopkThreshold, what_finds_no_room_stays_in_the_residual) {
  // The second step has 110 elements at the threshold that the first one left, and room for 104.
  const std::size_t numel = 1000;
  std::vector<double> values(numel, 0.0);
  for (std::size_t i = 0; i < 300; ++i) {
    values[3 * i] = i % 2 == 0 ? 8.0 : -8.0;
  }
  for (const SimdLevel level : levels()) {
    HostResidual state(DataType::kFloat32, numel);
    const TopkRequest request{.k = 100, .capacity = 104, .level = level};
    std::vector<double> first(values);
    for (std::size_t i = 300; i < numel; ++i) {
      first[i] = 0.0;  // Just the 100 first ones.
    }
    compress(state, tensor_of(DataType::kFloat32, first), request);
    state.commit();
    std::vector<double> second(values);
    for (std::size_t i = 330; i < numel; ++i) {
      second[i] = 0.0;
    }
    const StepResult result = compress(state, tensor_of(DataType::kFloat32, second), request);
    state.commit();
    EXPECT_EQ(result.outcome.passes, 1);
    const std::vector<Entry> sent = entries_of(parsed(result.list, numel, {}));
    EXPECT_EQ(sent.size(), 104U);
    expect_nothing_is_lost(second, sent, residual_of(state));
  }
}

TEST(TopkNonFinite, flags_the_list_and_leaves_the_state) {
  Rng rng(5);
  const std::size_t numel = 70000;
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : kFloatTypes) {
      for (const bool exact : {false, true}) {
        for (const auto& [position, bad] : {std::pair<std::size_t, double>{0, kNan},
                                            {65535, kInfinity},
                                            {65537, -kInfinity},
                                            {numel - 1, -kNan}}) {
          HostResidual state(dtype, numel);
          TopkRequest request = exact ? exactly(700, level) : about(700, numel, level);
          for (int step = 0; step < 3; ++step) {
            compress(state, tensor_of(dtype, normal_values(rng, numel)), request);
            state.commit();
          }
          const Buffer before = saved(state);
          std::vector<double> values = normal_values(rng, numel);
          values[position] = bad;
          const StepResult step = compress(state, tensor_of(dtype, values), request);
          EXPECT_TRUE(step.outcome.non_finite);
          EXPECT_EQ(step.outcome.count, 0U);
          EXPECT_TRUE(parsed(step.list, numel, {.dtype = dtype}).non_finite);
          state.commit();  // Is a rollback here.
          EXPECT_EQ(saved(state), before);
        }
      }
    }
  }
}

TEST(TopkNonFinite, an_overflow_of_the_sum_counts) {
  HostResidual state(DataType::kFloat32, 2);
  const TopkRequest request = exactly(1, SimdLevel::kPlain);
  compress(state, tensor_of(DataType::kFloat32, {3e38, 3.1e38}), request);
  state.commit();  // The first element is kept back.
  const StepResult step = compress(state, tensor_of(DataType::kFloat32, {3e38, 0.0}), request);
  EXPECT_TRUE(step.outcome.non_finite);
}

TEST(TopkNonFinite, k_of_all_sees_it_too) {
  HostResidual state(DataType::kFloat16, 3);
  const StepResult step = compress(state,
                                   tensor_of(DataType::kFloat16, {1.0, kInfinity, 2.0}),
                                   about(3, 3, detect_simd_level()));
  EXPECT_TRUE(step.outcome.non_finite);
}

TEST(TopkRollback, leaves_the_state_as_it_was_at_any_step) {
  Rng rng(6);
  const std::size_t numel = 1000;
  for (const DataType dtype : kFloatTypes) {
    for (const double momentum : {0.0, 0.9}) {
      HostResidual state(dtype, numel);
      TopkRequest request = about(20, numel, detect_simd_level());
      request.momentum = momentum;
      for (int step = 0; step < 5; ++step) {
        const Buffer before = saved(state);
        const Buffer shard = tensor_of(dtype, normal_values(rng, numel));
        const StepResult first = compress(state, shard, request);
        state.rollback();
        ASSERT_EQ(saved(state), before);
        const StepResult again = compress(state, shard, request);
        ASSERT_EQ(again.list, first.list);
        state.commit();
        ASSERT_NE(saved(state), before);
      }
    }
  }
}

TEST(TopkRequests, outside_their_ranges_are_errors_that_change_nothing) {
  HostResidual state(DataType::kFloat32, 10);
  const Buffer shard = tensor_of(DataType::kFloat32, std::vector<double>(10, 1.0));
  Buffer out(1000);
  for (const TopkRequest& request : {TopkRequest{.k = 0, .capacity = 1},
                                     TopkRequest{.k = 11, .capacity = 11},
                                     TopkRequest{.k = 3, .capacity = 2},
                                     TopkRequest{.k = 3, .capacity = 11},
                                     TopkRequest{.k = 3, .capacity = 3, .momentum = 1.0},
                                     TopkRequest{.k = 3, .capacity = 3, .momentum = -0.5}}) {
    const auto outcome = state.compress(shard.data(), request, out);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(state.is_pending());
  }
}

TEST(TopkRequests, a_short_output_is_an_error_that_says_what_it_takes) {
  HostResidual state(DataType::kFloat32, 10);
  const Buffer shard = tensor_of(DataType::kFloat32, std::vector<double>(10, 1.0));
  Buffer out(max_list_bytes(10, 3, {}) - 1);
  const auto outcome = state.compress(shard.data(), {.k = 3, .capacity = 3}, out);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.status().message().find(std::to_string(out.size() + 1)), std::string::npos);
}

TEST(TopkRequests, no_second_step_begins_while_one_is_pending) {
  HostResidual state(DataType::kFloat32, 4);
  Buffer shard = tensor_of(DataType::kFloat32, {1.0, 2.0, 3.0, 4.0});
  compress(state, shard, exactly(1, SimdLevel::kPlain));
  Buffer out(1000);
  Bytes bytes;
  EXPECT_FALSE(state.compress(shard.data(), {.k = 1, .capacity = 1}, out).ok());
  EXPECT_FALSE(state.flush_into(shard.data()).ok());
  EXPECT_FALSE(state.scale(2.0).ok());
  EXPECT_FALSE(state.save(bytes).ok());
  state.commit();
  EXPECT_TRUE(state.save(bytes).ok());
}

TEST(TopkRequests, an_empty_shard_has_an_empty_list) {
  HostResidual state(DataType::kFloat32, 0);
  const StepResult step = compress(state, {}, {.k = 0, .capacity = 0});
  EXPECT_EQ(step.list.size(), kTopkHeaderBytes);
  EXPECT_EQ(parsed(step.list, 0, {}).count, 0U);
}

TEST(TopkFp16, keeps_what_rounding_takes_away) {
  Rng rng(7);
  const std::size_t numel = 70000;
  for (const SimdLevel level : levels()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (const double size : {1e6, 1.0, 1e-9, 1e-38}) {
        HostResidual state(dtype, numel);
        TopkRequest request = about(700, numel, level);
        request.fp16 = true;
        for (int step = 0; step < 4; ++step) {
          const Buffer shard = tensor_of(dtype, normal_values(rng, numel, size));
          const std::vector<double> acc = accumulated(state, shard);
          const StepResult result = compress(state, shard, request);
          state.commit();
          const auto sent = entries_of(parsed(result.list, numel, {.dtype = dtype, .fp16 = true}));
          ASSERT_GE(3 * sent.size(), 2 * request.k);
          // A float16 near its value: the difference is exact, so the sum is, too.
          expect_nothing_is_lost(acc, sent, residual_of(state));
          for (const Entry& entry : sent) {
            ASSERT_LE(std::abs(state.residual_at(entry.index)),
                      std::abs(acc[entry.index]) * 0x1p-10)
                << size;
          }
        }
      }
    }
  }
}

TEST(TopkFp16, one_block_may_hold_very_large_and_very_small_values) {
  std::vector<double> values(100, 1e-9);
  values[3] = 1e6;
  values[50] = -3.4e38;
  for (const SimdLevel level : levels()) {
    HostResidual state(DataType::kFloat32, 100);
    const Buffer shard = tensor_of(DataType::kFloat32, values);
    const std::vector<double> acc = accumulated(state, shard);
    TopkRequest request = exactly(100, level);
    request.fp16 = true;
    const StepResult result = compress(state, shard, request);
    state.commit();
    const auto sent = entries_of(parsed(result.list, 100, {.fp16 = true}));
    EXPECT_NEAR(sent[50].value / -3.4e38, 1.0, 1e-3);
    EXPECT_EQ(sent[0].value, 0.0);  // Too small beside the other.
    EXPECT_EQ(state.residual_at(0), values[0] == 0 ? 0 : static_cast<double>(1e-9F));  // But kept.
    expect_nothing_is_lost(acc, sent, residual_of(state));
  }
}

TEST(TopkFp16, the_largest_float_saturates_and_the_rest_stays) {
  const double maximum = std::numeric_limits<float>::max();
  HostResidual state(DataType::kFloat32, 1);
  TopkRequest request = exactly(1, SimdLevel::kPlain);
  request.fp16 = true;
  const StepResult result = compress(state, tensor_of(DataType::kFloat32, {maximum}), request);
  state.commit();
  const auto sent = entries_of(parsed(result.list, 1, {.fp16 = true}));
  EXPECT_LT(sent[0].value, maximum);
  EXPECT_EQ(sent[0].value + state.residual_at(0), maximum);
}

TEST(TopkNarrow, sums_beyond_float16_saturate_and_the_rest_stays) {
  HostResidual state(DataType::kFloat16, 2);
  const TopkRequest request = exactly(1, detect_simd_level());
  compress(state, tensor_of(DataType::kFloat16, {60000.0, 61000.0}), request);
  state.commit();
  const StepResult result = compress(state, tensor_of(DataType::kFloat16, {60000.0, 0.0}), request);
  state.commit();
  const auto sent = entries_of(parsed(result.list, 2, {.dtype = DataType::kFloat16}));
  EXPECT_EQ(sent[0].value, 65504.0);
  EXPECT_EQ(state.residual_at(0), 120000.0 - 65504.0);
}

TEST(TopkLevels, have_the_same_lists_states_and_thresholds) {
  for (const DataType dtype : kFloatTypes) {
    for (const bool fp16 : {false, true}) {
      for (const double momentum : {0.0, 0.9}) {
        std::vector<std::vector<Buffer>> of_level;
        for (const SimdLevel level : levels()) {
          Rng rng(11);
          const std::size_t numel = 100003;
          HostResidual state(dtype, numel);
          TopkRequest request = about(1000, numel, level);
          request.fp16 = fp16;
          request.momentum = momentum;
          std::vector<Buffer>& results = of_level.emplace_back();
          for (int step = 0; step < 5; ++step) {
            std::vector<double> values(numel);
            for (double& value : values) {
              value = rng.unit() * rng.unit() - 0.2;
            }
            results.push_back(compress(state, tensor_of(dtype, values), request).list);
            state.commit();
            results.push_back(saved(state));
          }
        }
        for (const auto& results : of_level) {
          EXPECT_EQ(results, of_level.front());
        }
      }
    }
  }
}

TEST(TopkSteady, takes_one_pass_in_most_steps_of_drifting_gradients) {
  Rng rng(12);
  const std::size_t numel = 300000;
  const std::size_t k = topk_k(numel, 0.01);
  HostResidual state(DataType::kFloat32, numel);
  std::vector<double> mean = normal_values(rng, numel, 0.3);
  int single = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<double> values(numel);
    for (std::size_t i = 0; i < numel; ++i) {
      mean[i] = 0.98 * mean[i] + 0.05 * (rng.unit() - 0.5);
      values[i] = (1.0 - 0.004 * step) * (mean[i] + draw_normal(rng));
    }
    const StepResult result = compress(
        state, tensor_of(DataType::kFloat32, values), about(k, numel, detect_simd_level()));
    state.commit();
    EXPECT_LE(result.outcome.count, topk_capacity(k, numel));
    EXPECT_GE(3 * result.outcome.count, 2 * k);
    single += result.outcome.passes == 1 ? 1 : 0;
  }
  EXPECT_GE(single, 45);
}

}  // namespace
}  // namespace lightcc::host_residual_test
