// Saved low-rank states: golden bytes, exact resumption, damage, and other numbers of members.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/sha256.hpp"

#include "compression/low_rank_testing.hpp"

namespace lightcc::low_rank_saved_test {
namespace {

using testing::Buffer;
using testing::bytes_of;
using testing::kFloatTypes;
using testing::make_members;
using testing::normal_values;
using testing::residual_of;
using testing::run_step;
using testing::saved;
using testing::tensor_of;

/// A state of one row and two columns after a step with (2, 0), all of which it could send.
const std::vector<unsigned> kGolden = {
    'l', 'c', 'c',  'l',  'o', 'w', 'r', 1,  // magic, version
    7,                                       // float32
    4,   0,   0,    0,                       // rank
    1,   0,   0,    0,    0,   0,   0,   0,  // rows
    2,   0,   0,    0,    0,   0,   0,   0,  // columns
    1,   0,   0,    0,    0,   0,   0,   0,  // step
    0,   0,   0,    0,                       // residual 0.0
    0,   0,   0,    0,                       // residual 0.0
    0,   0,   0x80, 0x3f,                    // basis 1.0
    0,   0,   0,    0,                       // basis 0.0
};

/// The last 32 bytes made right again after a change.
void sign(Buffer& bytes) {
  const auto digest = sha256(std::span(bytes).first(bytes.size() - 32));
  std::copy(digest.begin(), digest.end(), bytes.end() - 32);
}

Buffer golden() {
  Buffer bytes = bytes_of(kGolden);
  bytes.resize(bytes.size() + 32);
  sign(bytes);
  return bytes;
}

TEST(LowRankSaved, golden_bytes_are_written_and_read) {
  auto members = make_members(1, DataType::kFloat32, {1, 2}, 4);
  run_step(members, {tensor_of(DataType::kFloat32, {2.0, 0.0})});
  // The sign of the basis is that of the first one, which chance has drawn.
  Buffer written = saved(members[0]);
  written[48] &= std::byte{0x7f};
  written[52] &= std::byte{0x7f};
  sign(written);
  EXPECT_EQ(written, golden());
  const auto loaded = LowRankState::load(golden());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->matrix(), (MatrixShape{1, 2}));
  EXPECT_EQ(loaded->rank(), 4U);
  EXPECT_EQ(loaded->step(), 1U);
  EXPECT_EQ(loaded->basis_at(0), 1.0);
}

TEST(LowRankSaved, what_was_before_the_last_step_is_kept_where_that_is_asked_for) {
  for (const DataType dtype : kFloatTypes) {
    Rng rng(43);
    auto members = make_members(1, dtype, {9, 40}, 3);
    LowRankState& state = members[0];
    const auto step = [&] { run_step(members, {tensor_of(dtype, normal_values(rng, 360))}); };
    step();
    EXPECT_FALSE(state.other_step());
    state.keep_other();
    Buffer other;
    EXPECT_EQ(state.save_other(other).code(), ErrorCode::kInternal);
    for (std::uint64_t i = 1; i < 4; ++i) {
      const Buffer before = saved(state);
      step();
      ASSERT_EQ(state.other_step(), std::optional(i));
      other.clear();
      ASSERT_TRUE(state.save_other(other).ok());
      EXPECT_EQ(other, before);
    }
    std::vector<double> values = normal_values(rng, 360);
    values[17] = testing::kNan;
    run_step(members, {tensor_of(dtype, values)});  // Is void: the step before is still the last.
    EXPECT_EQ(state.other_step(), std::optional(std::uint64_t{3}));
    ASSERT_TRUE(state.set_rank(2).ok());
    EXPECT_FALSE(state.other_step());
    step();
    ASSERT_TRUE(state.scale(2.0).ok());
    EXPECT_FALSE(state.other_step());
  }
}

TEST(LowRankSaved, a_loaded_state_goes_on_bit_for_bit) {
  for (const DataType dtype : kFloatTypes) {
    Rng rng(41);
    auto members = make_members(1, dtype, {40, 70}, 3);
    for (int step = 0; step < 3; ++step) {
      run_step(members, {tensor_of(dtype, normal_values(rng, 2800))});
    }
    auto loaded = LowRankState::load(saved(members[0]));
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    std::vector<LowRankState> others;
    others.push_back(std::move(*loaded));
    for (int step = 0; step < 3; ++step) {
      const Buffer input = tensor_of(dtype, normal_values(rng, 2800));
      ASSERT_EQ(run_step(members, {input}).outs, run_step(others, {input}).outs);
      ASSERT_EQ(saved(members[0]), saved(others[0]));
    }
  }
}

void expect_refused(const Buffer& bytes, const std::string& word) {
  const auto loaded = LowRankState::load(bytes);
  ASSERT_FALSE(loaded.ok()) << word;
  EXPECT_EQ(loaded.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find(word), std::string::npos) << loaded.status().message();
}

TEST(LowRankSaved, damage_is_found) {
  const Buffer good = golden();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(LowRankState::load(std::span(good).first(size)).ok()) << size;
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    Buffer bytes = good;
    bytes[i] ^= std::byte{1};
    EXPECT_FALSE(LowRankState::load(bytes).ok()) << i;
  }
  expect_refused(Buffer(7), "does not begin");
  expect_refused({good.begin(), good.begin() + 40}, "cut short");
  Buffer version = good;
  version[7] = std::byte{2};
  expect_refused(version, "another version");
  Buffer flipped = good;
  flipped[40] ^= std::byte{1};
  expect_refused(flipped, "checksum");
}

TEST(LowRankSaved, what_is_signed_and_wrong_is_refused) {
  const auto changed = [](std::size_t at, unsigned value) {
    Buffer bytes = golden();
    bytes[at] = static_cast<std::byte>(value);
    sign(bytes);
    return bytes;
  };
  expect_refused(changed(8, 1), "out of range");   // int8
  expect_refused(changed(9, 0), "out of range");   // rank 0
  expect_refused(changed(9, 65), "out of range");  // rank 65
  expect_refused(changed(13, 0), "out of range");  // rows
  expect_refused(changed(21, 0), "out of range");  // columns
  expect_refused(changed(21, 3), "elements");      // columns
  expect_refused(changed(20, 0x80), "elements");   // 2^63 rows
  expect_refused(changed(28, 0x80), "elements");   // 2^63 columns
  Buffer infinite = changed(39, 0x80);
  infinite[40] = std::byte{0x7f};
  sign(infinite);
  expect_refused(infinite, "not finite");
}

std::vector<double> sum_of_residuals(const std::vector<Buffer>& states) {
  std::vector<double> sum;
  for (const Buffer& bytes : states) {
    const auto state = LowRankState::load(bytes);
    EXPECT_TRUE(state.ok());
    const auto kept = residual_of(*state);
    sum.resize(kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      sum[i] += kept[i];
    }
  }
  return sum;
}

TEST(LowRankSaved, another_number_of_members_keeps_the_sum) {
  Rng rng(43);
  auto members = make_members(3, DataType::kFloat64, {12, 20}, 2);
  std::vector<Buffer> inputs;
  for (std::size_t i = 0; i < members.size(); ++i) {
    inputs.push_back(tensor_of(DataType::kFloat64, normal_values(rng, 240)));
  }
  run_step(members, inputs);
  std::vector<Buffer> states;
  for (const LowRankState& member : members) {
    states.push_back(saved(member));
  }
  const std::vector<std::span<const std::byte>> spans(states.begin(), states.end());
  for (const std::size_t count : {1U, 2U, 3U, 5U}) {
    std::vector<Buffer> after;
    for (std::size_t j = 0; j < count; ++j) {
      const auto state = LowRankState::reshard(spans, count, j);
      ASSERT_TRUE(state.ok()) << state.status().message();
      EXPECT_EQ(testing::basis_of(*state), testing::basis_of(members[0]));
      EXPECT_EQ(state->step(), 1U);
      after.push_back(saved(*state));
    }
    const auto sum = sum_of_residuals(after);
    const auto expected = sum_of_residuals(states);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(sum[i], expected[i], 1e-14);
    }
    if (count == 3) {
      EXPECT_EQ(after, states);
    }
  }
}

TEST(LowRankSaved, states_of_different_tensors_are_not_cut_anew) {
  const auto a = make_members(1, DataType::kFloat32, {12, 20}, 2);
  const auto b = make_members(1, DataType::kFloat32, {20, 12}, 2);
  const Buffer first = saved(a[0]);
  const Buffer second = saved(b[0]);
  const std::vector<std::span<const std::byte>> both{first, second};
  EXPECT_FALSE(LowRankState::reshard(both, 1, 0).ok());
  EXPECT_FALSE(LowRankState::reshard({}, 1, 0).ok());
  EXPECT_FALSE(LowRankState::reshard({both.data(), 1}, 1, 1).ok());
}

}  // namespace
}  // namespace lightcc::low_rank_saved_test
