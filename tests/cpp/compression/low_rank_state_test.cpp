// A step of low-rank compression: its parts against plain sums, what adds up, and what makes it
// void.
#include "lightcc/compression/low_rank_state.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/orthonormal.hpp"

#include "compression/low_rank_testing.hpp"

namespace lightcc::low_rank_state_test {
namespace {

using testing::basis_of;
using testing::Buffer;
using testing::kFloatTypes;
using testing::kInfinity;
using testing::kNan;
using testing::levels;
using testing::LowRankStep;
using testing::make_members;
using testing::normal_values;
using testing::residual_of;
using testing::run_step;
using testing::saved;
using testing::tensor_of;
using testing::values_of;

struct Case {
  MatrixShape matrix;
  std::size_t rank;
};

/// Rows and columns on both sides of what a tile has, and the oddest ones.
const std::vector<Case> kCases = {{{1, 1}, 1},
                                  {{1, 70}, 2},
                                  {{70, 1}, 2},
                                  {{3, 5}, 64},
                                  {{8, 512}, 4},
                                  {{9, 513}, 4},
                                  {{17, 1100}, 3},
                                  {{100, 33}, 32},
                                  {{65, 130}, 64}};

double epsilon_of(const LowRankState& state) {
  return state.lane_dtype() == DataType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                                  : std::numeric_limits<float>::epsilon();
}

std::vector<Buffer> draw_inputs(Rng& rng, std::size_t members, DataType dtype, std::size_t count) {
  std::vector<Buffer> inputs;
  for (std::size_t i = 0; i < members; ++i) {
    inputs.push_back(tensor_of(dtype, normal_values(rng, count)));
  }
  return inputs;
}

double norm(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

TEST(LowRankState, the_parts_of_a_step_are_the_products_they_say) {
  for (const DataType dtype : kFloatTypes) {
    for (const Case& c : kCases) {
      Rng rng(c.matrix.rows * 1000 + c.matrix.cols);
      const auto [rows, cols] = c.matrix;
      LowRankState state(dtype, c.matrix, c.rank);
      const std::size_t vectors = state.vectors();
      const DataType lane = state.lane_dtype();
      const Buffer input = tensor_of(dtype, normal_values(rng, state.numel()));
      std::vector<double> m = values_of(dtype, input);
      for (double& value : m) {
        value *= 0.5;
      }
      const std::vector<double> basis = basis_of(state);
      const double tolerance =
          4.0 * epsilon_of(state) * static_cast<double>(rows + cols) * (1.0 + norm(m));

      Buffer left(state.left_elems() * element_size(lane));
      ASSERT_TRUE(state.project(input.data(), 0.5, left.data()).ok());
      for (std::size_t j = 0; j < vectors; ++j) {
        for (std::size_t row = 0; row < rows; ++row) {
          double expected = 0.0;
          for (std::size_t col = 0; col < cols; ++col) {
            expected += m[row * cols + col] * basis[j * cols + col];
          }
          ASSERT_NEAR(testing::get(lane, left.data(), j * rows + row), expected, tolerance);
        }
      }
      ASSERT_TRUE(state.orthonormalise(left.data()));
      const std::vector<double> l = values_of(lane, left);

      Buffer right(state.right_elems() * element_size(lane));
      ASSERT_TRUE(state.collect(left.data(), right.data()).ok());
      for (std::size_t j = 0; j < vectors; ++j) {
        for (std::size_t col = 0; col < cols; ++col) {
          double expected = 0.0;
          for (std::size_t row = 0; row < rows; ++row) {
            expected += m[row * cols + col] * l[j * rows + row];
          }
          ASSERT_NEAR(testing::get(lane, right.data(), j * cols + col), expected, tolerance);
        }
      }
      const std::vector<double> r = values_of(lane, right);

      Buffer out(input.size());
      const auto good = state.finish(left.data(), right.data(), 2.0, out.data());
      ASSERT_TRUE(good.ok() && *good);
      for (std::size_t i = 0; i < state.numel(); ++i) {
        double share = 0.0;
        for (std::size_t j = 0; j < vectors; ++j) {
          share += l[j * rows + i / cols] * r[j * cols + i % cols];
        }
        const double rounding = dtype == DataType::kFloat16    ? 0x1p-10 * std::abs(share)
                                : dtype == DataType::kBfloat16 ? 0x1p-7 * std::abs(share)
                                                               : 0.0;
        ASSERT_NEAR(testing::get(dtype, out.data(), i), 2.0 * share, tolerance + 2.0 * rounding);
        ASSERT_NEAR(state.residual_at(i), m[i] - share, tolerance);
      }
    }
  }
}

TEST(LowRankState, all_simd_levels_have_the_same_bits) {
  for (const DataType dtype : kFloatTypes) {
    for (const Case& c : kCases) {
      std::vector<Buffer> states;
      std::vector<Buffer> results;
      for (const SimdLevel level : levels()) {
        Rng rng(3);
        auto members = make_members(2, dtype, c.matrix, c.rank, level);
        Buffer result;
        for (int step = 0; step < 3; ++step) {
          const auto done =
              run_step(members, draw_inputs(rng, 2, dtype, members.front().numel()), 0.3, 0.7);
          result.insert(result.end(), done.outs[0].begin(), done.outs[0].end());
          ASSERT_EQ(done.outs[0], done.outs[1]);
        }
        states.push_back(saved(members[1]));
        results.push_back(result);
      }
      for (std::size_t i = 1; i < states.size(); ++i) {
        ASSERT_EQ(states[i], states[0]) << data_type_name(dtype) << " " << c.matrix.rows;
        ASSERT_EQ(results[i], results[0]) << data_type_name(dtype) << " " << c.matrix.rows;
      }
    }
  }
}

/// What members had is what they sent together and what they keep back. The bound: roundings of r
/// products in each lane, of the sum of shares, and of the difference.
TEST(LowRankState, what_is_sent_and_what_is_kept_back_is_what_was_there) {
  constexpr std::size_t kMembers = 3;
  for (const DataType dtype : kFloatTypes) {
    for (const Case& c : kCases) {
      Rng rng(c.matrix.cols);
      const auto [rows, cols] = c.matrix;
      auto members = make_members(kMembers, dtype, c.matrix, c.rank);
      const std::size_t vectors = members[0].vectors();
      const DataType lane = members[0].lane_dtype();
      for (int step = 0; step < 4; ++step) {
        const auto inputs = draw_inputs(rng, kMembers, dtype, members[0].numel());
        std::vector<std::vector<double>> before;
        for (const LowRankState& member : members) {
          before.push_back(residual_of(member));
        }
        const LowRankStep done = run_step(members, inputs);
        const auto l = values_of(lane, done.left);
        const auto r = values_of(lane, done.right_sum);
        for (std::size_t i = 0; i < members[0].numel(); ++i) {
          double had = 0.0;
          double kept = 0.0;
          double magnitudes = 0.0;
          for (std::size_t m = 0; m < kMembers; ++m) {
            had += testing::get(dtype, inputs[m].data(), i) + before[m][i];
            kept += members[m].residual_at(i);
            magnitudes += std::abs(before[m][i]) + std::abs(members[m].residual_at(i)) +
                          std::abs(testing::get(dtype, inputs[m].data(), i));
          }
          double sent = 0.0;
          for (std::size_t j = 0; j < vectors; ++j) {
            const double weight = l[j * rows + i / cols];
            sent += weight * r[j * cols + i % cols];
            for (const Buffer& own : done.right) {
              magnitudes += std::abs(weight * testing::get(lane, own.data(), j * cols + i % cols));
            }
          }
          const double bound =
              static_cast<double>(vectors + kMembers + 2) * epsilon_of(members[0]) * magnitudes;
          ASSERT_NEAR(sent + kept, had, bound) << i << " of " << rows << " x " << cols;
        }
      }
    }
  }
}

TEST(LowRankState, all_vectors_of_a_matrix_lose_nothing) {
  for (const MatrixShape& matrix : {MatrixShape{5, 40}, MatrixShape{40, 5}, MatrixShape{1, 9}}) {
    Rng rng(11);
    auto members = make_members(2, DataType::kFloat32, matrix, 8);
    const auto inputs = draw_inputs(rng, 2, DataType::kFloat32, members[0].numel());
    const LowRankStep done = run_step(members, inputs, 1.0, 0.5);
    for (std::size_t i = 0; i < members[0].numel(); ++i) {
      const double mean = (testing::get(DataType::kFloat32, inputs[0].data(), i) +
                           testing::get(DataType::kFloat32, inputs[1].data(), i)) /
                          2.0;
      ASSERT_NEAR(testing::get(DataType::kFloat32, done.outs[0].data(), i), mean, 1e-5);
      // Where members differ, what they keep back adds up to nothing.
      ASSERT_NEAR(members[0].residual_at(i) + members[1].residual_at(i), 0.0, 1e-5);
    }
  }
}

/// The singular values of the matrix are 8, 4, 2, 1, ...; the best approximation of rank 2 leaves
/// what the others have.
TEST(LowRankState, steps_together_find_the_largest_singular_vectors) {
  constexpr std::size_t kSize = 20;
  Rng rng(12);
  std::vector<double> matrix(kSize * kSize);
  std::vector<double> u = normal_values(rng, kSize * kSize);
  make_orthonormal(std::span(u), kSize, kSize);
  double rest = 0.0;
  for (std::size_t j = 0; j < kSize; ++j) {
    const double value = std::ldexp(8.0, -static_cast<int>(j));
    rest += j < 2 ? 0.0 : value * value;
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      matrix[i] += value * u[j * kSize + i / kSize] * u[j * kSize + i % kSize];
    }
  }
  const Buffer input = tensor_of(DataType::kFloat64, matrix);
  LowRankState state(DataType::kFloat64, {kSize, kSize}, 2);
  Buffer left(state.left_elems() * sizeof(double));
  Buffer right(state.right_elems() * sizeof(double));
  Buffer out(input.size());
  std::vector<double> errors;
  for (int step = 0; step < 16; ++step) {
    ASSERT_TRUE(state.project(input.data(), 1.0, left.data()).ok());
    ASSERT_TRUE(state.orthonormalise(left.data()));
    ASSERT_TRUE(state.collect(left.data(), right.data()).ok());
    ASSERT_TRUE(state.finish(left.data(), right.data(), 1.0, out.data()).ok());
    // What is kept back is made nothing again: it would come in on top of the matrix.
    std::vector<double> difference(matrix.size());
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      difference[i] = matrix[i] - testing::get(DataType::kFloat64, out.data(), i);
    }
    errors.push_back(norm(difference));
    ASSERT_TRUE(state.scale(1e-30).ok());
  }
  EXPECT_GT(errors.front(), 1.1 * std::sqrt(rest));
  EXPECT_NEAR(errors.back(), std::sqrt(rest), 1e-3);
}

TEST(LowRankState, a_constant_gradient_arrives_in_the_long_run) {
  constexpr int kSteps = 60;
  const MatrixShape matrix{30, 40};
  Rng rng(13);
  auto members = make_members(2, DataType::kFloat32, matrix, 2);
  const auto inputs = draw_inputs(rng, 2, DataType::kFloat32, members[0].numel());
  std::vector<double> arrived(members[0].numel());
  for (int step = 0; step < kSteps; ++step) {
    const auto out = values_of(DataType::kFloat32, run_step(members, inputs).outs[0]);
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      arrived[i] += out[i];
    }
  }
  std::vector<double> gradient(arrived.size());
  std::vector<double> missing(arrived.size());
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    gradient[i] = testing::get(DataType::kFloat32, inputs[0].data(), i) +
                  testing::get(DataType::kFloat32, inputs[1].data(), i);
    missing[i] = kSteps * gradient[i] - arrived[i];
  }
  // As many steps' worth of gradients is late as it takes to send each direction once, about.
  EXPECT_LT(norm(missing), 20.0 * norm(gradient));
}

TEST(LowRankState, one_member_that_is_no_number_makes_the_step_void_for_all) {
  for (const DataType dtype : kFloatTypes) {
    const double large = dtype == DataType::kFloat64 ? 0x1p901 : 0x1p101;
    for (const double bad : {kNan, kInfinity, -kInfinity, large}) {
      if (dtype == DataType::kFloat16 && bad == large) {
        continue;  // Infinite there.
      }
      for (const std::size_t at : {0U, 37U, 599U}) {
        Rng rng(14);
        auto members = make_members(2, dtype, {20, 30}, 2);
        run_step(members, draw_inputs(rng, 2, dtype, 600));
        const std::vector<Buffer> before{saved(members[0]), saved(members[1])};
        auto inputs = draw_inputs(rng, 2, dtype, 600);
        testing::put(dtype, inputs[1].data(), at, bad);
        EXPECT_TRUE(run_step(members, inputs).is_void) << data_type_name(dtype) << " " << bad;
        EXPECT_EQ(saved(members[0]), before[0]);
        EXPECT_EQ(saved(members[1]), before[1]);
        EXPECT_FALSE(run_step(members, draw_inputs(rng, 2, dtype, 600)).is_void);
      }
    }
  }
}

TEST(LowRankState, after_zeros_the_next_gradient_is_seen) {
  auto members = make_members(1, DataType::kFloat32, {20, 30}, 2);
  const Buffer zeros = tensor_of(DataType::kFloat32, std::vector<double>(600));
  const LowRankStep nothing = run_step(members, {zeros});
  EXPECT_EQ(nothing.outs[0], zeros);
  std::vector<double> one(600);
  for (std::size_t i = 0; i < one.size(); ++i) {
    one[i] = std::sin(static_cast<double>(i / 30)) * std::cos(static_cast<double>(i % 30));
  }
  const LowRankStep done = run_step(members, {tensor_of(DataType::kFloat32, one)});
  const auto out = values_of(DataType::kFloat32, done.outs[0]);
  for (std::size_t i = 0; i < one.size(); ++i) {
    ASSERT_NEAR(out[i], one[i], 1e-5);  // It has rank 1.
  }
}

TEST(LowRankState, results_may_lie_where_inputs_do) {
  for (const DataType dtype : kFloatTypes) {
    Rng rng(15);
    auto apart = make_members(1, dtype, {33, 600}, 3);
    auto in_place = make_members(1, dtype, {33, 600}, 3);
    Buffer data = draw_inputs(rng, 1, dtype, apart[0].numel())[0];
    const LowRankStep done = run_step(apart, {data});
    Buffer left = done.left;
    Buffer right = done.right_sum;
    ASSERT_TRUE(in_place[0].project(data.data(), 1.0, left.data()).ok());
    ASSERT_TRUE(in_place[0].orthonormalise(left.data()));
    ASSERT_TRUE(in_place[0].collect(left.data(), right.data()).ok());
    ASSERT_TRUE(in_place[0].finish(left.data(), right.data(), 1.0, data.data()).ok());
    EXPECT_EQ(data, done.outs[0]);
    EXPECT_EQ(saved(in_place[0]), saved(apart[0]));
  }
}

TEST(LowRankState, one_that_has_joined_sends_what_it_kept_back) {
  Rng rng(16);
  auto members = make_members(2, DataType::kFloat32, {20, 30}, 2);
  run_step(members, draw_inputs(rng, 2, DataType::kFloat32, 600));
  auto with_zeros = make_members(2, DataType::kFloat32, {20, 30}, 2);
  for (std::size_t i = 0; i < 2; ++i) {
    auto loaded = LowRankState::load(saved(members[i]));
    ASSERT_TRUE(loaded.ok());
    with_zeros[i] = std::move(*loaded);
  }
  auto inputs = draw_inputs(rng, 2, DataType::kFloat32, 600);
  inputs[1] = Buffer(inputs[1].size());
  const LowRankStep expected = run_step(with_zeros, inputs);
  inputs[1].clear();
  const double kept = norm(residual_of(members[1]));
  const LowRankStep done = run_step(members, inputs);
  EXPECT_EQ(done.outs, expected.outs);
  EXPECT_EQ(saved(members[1]), saved(with_zeros[1]));
  EXPECT_LT(norm(residual_of(members[1])), kept);
}

TEST(LowRankState, another_rank_begins_with_another_basis_and_keeps_what_was_kept) {
  Rng rng(17);
  auto members = make_members(1, DataType::kFloat32, {20, 30}, 2);
  run_step(members, draw_inputs(rng, 1, DataType::kFloat32, 600));
  const auto kept = residual_of(members[0]);
  ASSERT_TRUE(members[0].set_rank(5).ok());
  EXPECT_EQ(members[0].vectors(), 5U);
  EXPECT_EQ(residual_of(members[0]), kept);
  EXPECT_FALSE(run_step(members, draw_inputs(rng, 1, DataType::kFloat32, 600)).is_void);
}

TEST(LowRankState, what_is_kept_back_is_scaled) {
  Rng rng(18);
  auto members = make_members(1, DataType::kFloat16, {20, 30}, 1);
  run_step(members, draw_inputs(rng, 1, DataType::kFloat16, 600));
  auto expected = residual_of(members[0]);
  const double energy = members[0].energy().kept;
  ASSERT_TRUE(members[0].scale(0.25).ok());
  for (double& value : expected) {
    value *= 0.25;
  }
  EXPECT_EQ(residual_of(members[0]), expected);
  EXPECT_EQ(members[0].energy().kept, energy / 16.0);
  for (const double factor : {0.0, -1.0, kNan, kInfinity}) {
    EXPECT_EQ(members[0].scale(factor).code(), ErrorCode::kInvalidArgument);
  }
}

TEST(LowRankState, the_energy_is_that_of_what_came_in_and_what_is_kept_back) {
  Rng rng(19);
  auto members = make_members(1, DataType::kFloat32, {20, 30}, 2);
  const auto inputs = draw_inputs(rng, 1, DataType::kFloat32, 600);
  run_step(members, inputs, 0.5);
  const double came_in = 0.5 * norm(values_of(DataType::kFloat32, inputs[0]));
  const double kept = norm(residual_of(members[0]));
  EXPECT_NEAR(members[0].energy().input, came_in * came_in, 1e-3);
  EXPECT_NEAR(members[0].energy().kept, kept * kept, 1e-3);
}

TEST(LowRankState, parts_out_of_turn_are_refused) {
  LowRankState state(DataType::kFloat32, {4, 4}, 1);
  Buffer factor(4 * sizeof(float));
  Buffer data(16 * sizeof(float));
  EXPECT_EQ(state.collect(factor.data(), factor.data()).code(), ErrorCode::kInternal);
  EXPECT_EQ(state.finish(factor.data(), factor.data(), 1.0, data.data()).status().code(),
            ErrorCode::kInternal);
  ASSERT_TRUE(state.project(data.data(), 1.0, factor.data()).ok());
  EXPECT_TRUE(state.is_pending());
  Bytes bytes;
  EXPECT_EQ(state.project(data.data(), 1.0, factor.data()).code(), ErrorCode::kInternal);
  EXPECT_EQ(state.save(bytes).code(), ErrorCode::kInternal);
  EXPECT_EQ(state.scale(2.0).code(), ErrorCode::kInternal);
  EXPECT_EQ(state.set_rank(2).code(), ErrorCode::kInternal);
  state.rollback();
  EXPECT_FALSE(state.is_pending());
  EXPECT_TRUE(state.save(bytes).ok());
}

}  // namespace
}  // namespace lightcc::low_rank_state_test
