// Autotune against jobs whose speed is a known function of the setting.
#include "lightcc/fusion/autotuner.hpp"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::autotuner_test {
namespace {

using std::chrono::microseconds;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;

AutotuneOptions options_of_everything() {
  AutotuneOptions options;
  options.start = {FusionRule::kAuto, 64 * kMebi, 1, 0};
  options.max_lanes = 3;
  options.chunk_matters = true;
  return options;
}

struct Training {
  std::vector<Autotuner::Sample> log;
  Tuning in_use;
  int steps = 0;
};

/// Trains until the tuner is done, or `most_steps`. A step has three tensors and 100 bytes.
Training train(const AutotuneOptions& options,
               const std::function<int(const Tuning&)>& step_us,
               int most_steps = 100000) {
  Autotuner tuner(options);
  Training run;
  run.in_use = options.start;
  TimePoint now{};
  for (; run.steps < most_steps && !tuner.done(); ++run.steps) {
    for (std::uint32_t id = 0; id < 3; ++id) {
      const bool changed = tuner.on_tensor(id, id == 0 ? 98 : 1, now);
      EXPECT_EQ(changed, tuner.tuning() != run.in_use);
      run.in_use = tuner.tuning();
    }
    for (const auto& sample : tuner.take_log()) {
      run.log.push_back(sample);
    }
    now += microseconds(step_us(run.in_use));
  }
  return run;
}

TEST(Autotuner, finds_the_best_value_of_every_dimension) {
  const Tuning best{FusionRule::kAuto, 4 * kMebi, 2, 1 * kMebi};
  const auto step_us = [&](const Tuning& t) {
    return 100 + (t.threshold_bytes == best.threshold_bytes && t.rule == best.rule ? 0 : 50) +
           (t.lanes == best.lanes ? 0 : 30) + (t.chunk_bytes == best.chunk_bytes ? 0 : 10);
  };
  const Training run = train(options_of_everything(), step_us);
  EXPECT_EQ(run.in_use, best);
  ASSERT_EQ(run.log.size(), 13U);  // The start, 6 ways of fusion, 2 lanes, 3 chunks; the winner.
  EXPECT_EQ(run.log.front().tuning, options_of_everything().start);
  EXPECT_EQ(run.log.back().tuning, best);
  EXPECT_DOUBLE_EQ(run.log.front().score, 100.0 / 190);  // Bytes per microsecond.
  EXPECT_DOUBLE_EQ(run.log.back().score, 1);
  EXPECT_EQ(run.steps, (3 + 12 * 5) * 10 + 1);
}

TEST(Autotuner, keeps_the_start_where_nothing_is_faster) {
  const Training run = train(options_of_everything(), [](const Tuning& t) {
    return t == options_of_everything().start ? 10 : 11;
  });
  EXPECT_EQ(run.in_use, options_of_everything().start);
  EXPECT_EQ(run.log.back().tuning, run.in_use);
}

TEST(Autotuner, horovods_rule_and_none_are_tried_too) {
  for (const FusionRule rule : {FusionRule::kNone, FusionRule::kHorovod}) {
    const Training run =
        train(options_of_everything(), [&](const Tuning& t) { return t.rule == rule ? 10 : 20; });
    EXPECT_EQ(run.in_use.rule, rule);
  }
}

TEST(Autotuner, what_the_user_has_given_is_left_alone) {
  AutotuneOptions options = options_of_everything();
  options.rule_is_given = true;
  options.threshold_is_given = true;
  options.chunk_matters = false;
  options.max_lanes = 1;
  const auto constant = [](const Tuning& /*tuning*/) { return 10; };
  EXPECT_EQ(train(options, constant).log.size(), 2U);  // The start, which wins.
  options.threshold_is_given = false;
  for (const auto& sample : train(options, constant).log) {
    EXPECT_EQ(sample.tuning.rule, FusionRule::kAuto);
  }
  options.start.rule = FusionRule::kNone;
  EXPECT_EQ(train(options, constant).log.size(), 2U) << "a threshold has no meaning";
  options = options_of_everything();
  options.threshold_is_given = true;
  for (const auto& sample : train(options, constant).log) {
    EXPECT_EQ(sample.tuning.threshold_bytes, 64 * kMebi);
  }
}

TEST(Autotuner, horovods_numbers_bound_the_search) {
  AutotuneOptions options = options_of_everything();
  options.warmup_samples = 0;
  options.steps_per_sample = 2;
  options.max_settings = 3;
  const Training run = train(options, [](const Tuning& /*tuning*/) { return 10; });
  EXPECT_EQ(run.log.size(), 4U);
  EXPECT_EQ(run.steps, 3 * 5 * 2 + 1);
}

TEST(Autotuner, a_slow_step_now_and_then_does_not_decide) {
  int step = 0;
  AutotuneOptions options = options_of_everything();
  options.steps_per_sample = 1;
  const Training run = train(options, [&](const Tuning& t) {
    return (t.lanes == 3 ? 10 : 12) + (++step % 5 == 0 ? 1000 : 0);
  });
  EXPECT_EQ(run.in_use.lanes, 3U);
}

TEST(Autotuner, a_clock_that_stands_still_does_no_harm) {
  const Training run = train(options_of_everything(), [](const Tuning& /*tuning*/) { return 0; });
  EXPECT_EQ(run.in_use, options_of_everything().start);
}

}  // namespace
}  // namespace lightcc::autotuner_test
