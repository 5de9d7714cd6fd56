// Members of a low-rank step, side by side in one process, and a reference that is obviously right.
#pragma once

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/low_rank_state.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::testing {

inline std::vector<double> residual_of(const LowRankState& state) {
  std::vector<double> values(state.numel());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = state.residual_at(i);
  }
  return values;
}

inline std::vector<double> basis_of(const LowRankState& state) {
  std::vector<double> values(state.right_elems());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = state.basis_at(i);
  }
  return values;
}

inline Buffer saved(const LowRankState& state) {
  Buffer bytes;
  const Status status = state.save(bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

/// Lanes.
inline std::vector<double> values_of(DataType dtype, const Buffer& buffer) {
  std::vector<double> values(buffer.size() / element_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = get(dtype, buffer.data(), i);
  }
  return values;
}

/// What an all-reduce makes of what members have: added up in their order.
inline Buffer sum_of(DataType lane, const std::vector<Buffer>& all) {
  Buffer sum = all.front();
  for (std::size_t member = 1; member < all.size(); ++member) {
    for (std::size_t i = 0; i < sum.size() / element_size(lane); ++i) {
      put(lane, sum.data(), i, get(lane, sum.data(), i) + get(lane, all[member].data(), i));
    }
  }
  return sum;
}

/// All that a step makes.
struct LowRankStep {
  bool is_void = false;
  Buffer left;                ///< Orthonormal.
  std::vector<Buffer> right;  ///< Of each member.
  Buffer right_sum;
  std::vector<Buffer> outs;  ///< Of each member.
};

/// A step of all members. An empty input is of one that has joined.
inline LowRankStep run_step(std::vector<LowRankState>& members,
                            const std::vector<Buffer>& inputs,
                            double prescale = 1.0,
                            double postscale = 1.0) {
  const LowRankState& first = members.front();
  const DataType lane = first.lane_dtype();
  LowRankStep step;
  std::vector<Buffer> parts;
  for (std::size_t i = 0; i < members.size(); ++i) {
    parts.emplace_back(first.left_elems() * element_size(lane));
    EXPECT_TRUE(
        members[i]
            .project(inputs[i].empty() ? nullptr : inputs[i].data(), prescale, parts.back().data())
            .ok());
  }
  step.left = sum_of(lane, parts);
  step.is_void = !first.orthonormalise(step.left.data());
  if (step.is_void) {
    for (LowRankState& member : members) {
      member.rollback();
    }
    return step;
  }
  for (LowRankState& member : members) {
    step.right.emplace_back(first.right_elems() * element_size(lane));
    EXPECT_TRUE(member.collect(step.left.data(), step.right.back().data()).ok());
  }
  step.right_sum = sum_of(lane, step.right);
  for (LowRankState& member : members) {
    step.outs.emplace_back(first.numel() * element_size(first.dtype()));
    const auto good =
        member.finish(step.left.data(), step.right_sum.data(), postscale, step.outs.back().data());
    EXPECT_TRUE(good.ok() && *good);
  }
  return step;
}

inline std::vector<LowRankState> make_members(std::size_t count,
                                              DataType dtype,
                                              const MatrixShape& matrix,
                                              std::size_t rank,
                                              SimdLevel level = detect_simd_level()) {
  std::vector<LowRankState> members;
  for (std::size_t i = 0; i < count; ++i) {
    members.emplace_back(dtype, matrix, rank, level);
  }
  return members;
}

}  // namespace lightcc::testing
