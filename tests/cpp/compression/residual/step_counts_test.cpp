// At which step of its compression a tensor is, where ranks have made other numbers of steps.
#include "lightcc/compression/residual/step_counts.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace lightcc::step_counts_test {
namespace {

const StepCounts::Key kTensor{0, "a"};

TEST(StepCounts, a_rank_that_only_takes_steps_is_never_ahead) {
  StepCounts counts;
  for (std::uint64_t step = 0; step < 5; ++step) {
    EXPECT_EQ(counts.ahead(kTensor, step), 0);
    EXPECT_EQ(counts.begin(kTensor, 0), step);
    counts.end(kTensor);
  }
}

TEST(StepCounts, ranks_go_on_with_the_most) {
  StepCounts here;
  StepCounts there;
  for (int step = 0; step < 2; ++step) {
    for (StepCounts* const counts : {&here, &there}) {
      counts->begin(kTensor, 0);
      counts->end(kTensor);
    }
  }
  // One has loaded a state after 1 step; the other one, later, a state after 100.
  std::uint64_t own = 1;
  std::uint64_t other = 2;
  for (const std::uint64_t expected : {2U, 3U, 100U, 101U}) {
    other = expected == 100 ? 100 : other;
    const std::int64_t agreed = std::max(here.ahead(kTensor, own), there.ahead(kTensor, other));
    own = here.begin(kTensor, agreed) + 1;
    other = there.begin(kTensor, agreed) + 1;
    EXPECT_EQ(own, expected + 1);
    EXPECT_EQ(other, expected + 1);
    here.end(kTensor);
    there.end(kTensor);
  }
}

// What a rank keeps back counts a step at some time of it. Whoever asks again meanwhile says what
// was agreed on.
TEST(StepCounts, a_step_that_runs_does_not_change_it) {
  StepCounts counts;
  counts.begin(kTensor, 7);
  EXPECT_EQ(counts.ahead(kTensor, 7), 7);
  EXPECT_EQ(counts.ahead(kTensor, 8), 7);
  EXPECT_EQ(counts.begin(kTensor, 7), 8U);  // As where this rank has joined.
  counts.end(kTensor);
  EXPECT_EQ(counts.ahead(kTensor, 8), 7);
  counts.end(kTensor);
  EXPECT_EQ(counts.ahead(kTensor, 9), 7);
}

TEST(StepCounts, tensors_and_sets_are_apart) {
  StepCounts counts;
  for (const StepCounts::Key& key : {kTensor, StepCounts::Key{0, "b"}, StepCounts::Key{1, "a"}}) {
    EXPECT_EQ(counts.begin(key, 0), 0U);
    counts.end(key);
  }
  counts.forget(1);
  EXPECT_EQ(counts.begin({1, "a"}, 0), 0U);
  EXPECT_EQ(counts.begin(kTensor, 0), 1U);
  counts.end({2, "never"});
}

TEST(StepCounts, no_number_that_a_rank_says_makes_steps_that_there_are_not) {
  using Steps = std::numeric_limits<std::int64_t>;
  StepCounts counts;
  counts.begin(kTensor, 0);
  counts.end(kTensor);
  const std::int64_t most = counts.ahead(kTensor, std::numeric_limits<std::uint64_t>::max());
  EXPECT_GT(most, Steps::max() / 8);
  EXPECT_EQ(counts.begin(kTensor, Steps::min()), 0U);
  EXPECT_EQ(counts.begin(kTensor, -3), 0U);
  EXPECT_GT(counts.begin(kTensor, Steps::max()), static_cast<std::uint64_t>(Steps::max() / 8));
}

}  // namespace
}  // namespace lightcc::step_counts_test
