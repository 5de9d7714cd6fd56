// Which ready tensors share a bucket.
#include "lightcc/fusion/strategy.hpp"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::strategy_test {
namespace {

using Indices = std::vector<std::size_t>;

Indices merged(const std::vector<FusionCandidate>& ready, std::uint64_t threshold) {
  return next_bucket(ready, FusionRule::kAuto, threshold);
}

TEST(FusionStrategyTest, names_are_parsed_and_others_refused_with_the_choices) {
  EXPECT_EQ(parse_fusion_strategy("none").value(), FusionRule::kNone);
  EXPECT_EQ(parse_fusion_strategy("horovod").value(), FusionRule::kHorovod);
  for (const char* name : {"", "auto_fusion", "piecewise_fusion", "scopewise_fusion"}) {
    EXPECT_EQ(parse_fusion_strategy(name).value(), FusionRule::kAuto) << name;
  }
  for (const char* name : {"None", "auto", "auto_fusion ", "arrival", "model"}) {
    const auto refused = parse_fusion_strategy(name);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("expected none, auto_fusion"), std::string::npos);
  }
}

TEST(FusionStrategyTest, a_planned_bucket_is_its_group_and_nothing_else) {
  const auto planned = [](const std::vector<FusionCandidate>& ready) {
    return next_bucket(ready, FusionRule::kPlanned, 0);
  };
  EXPECT_EQ(planned({{4, 1, 7}, {4, 1, 8}, {4, 1, 7}, {4, 1, 0}}), (Indices{0, 2}));
  EXPECT_EQ(planned({{4, 1, 7}, {4, 2, 7}, {4, 1, 7}}), (Indices{0, 2})) << "another dtype";
  EXPECT_EQ(planned({{4, 1, 0}, {4, 1, 0}}), Indices{0}) << "a bucket of one is no group";
}

TEST(FusionStrategyTest, horovods_rule_merges_up_to_its_threshold_and_0_merges_nothing) {
  const std::vector<FusionCandidate> ready = {{60, 1, 7}, {40, 1, 7}, {1, 1, 0}};
  EXPECT_EQ(next_bucket(ready, FusionRule::kHorovod, 100), (Indices{0, 1}));
  EXPECT_EQ(next_bucket(ready, FusionRule::kHorovod, 101), (Indices{0, 1, 2}));
  EXPECT_EQ(next_bucket(ready, FusionRule::kHorovod, 0), Indices{0});
}

TEST(FusionStrategyTest, nothing_ready_gives_an_empty_bucket) {
  EXPECT_TRUE(merged({}, 100).empty());
  EXPECT_TRUE(next_bucket({}, FusionRule::kNone, 100).empty());
}

TEST(FusionStrategyTest, none_sends_every_tensor_alone_even_of_a_group) {
  const std::vector<FusionCandidate> ready = {{4, 1, 7}, {4, 1, 7}, {4, 1, 0}};
  EXPECT_EQ(next_bucket(ready, FusionRule::kNone, 100), Indices{0});
}

TEST(FusionStrategyTest, the_threshold_itself_still_fits) {
  EXPECT_EQ(merged({{60, 1, 0}, {40, 1, 0}, {1, 1, 0}}, 100), (Indices{0, 1}));
}

TEST(FusionStrategyTest, a_small_tensor_behind_one_that_does_not_fit_still_fills_the_bucket) {
  EXPECT_EQ(merged({{60, 1, 0}, {50, 1, 0}, {40, 1, 0}}, 100), (Indices{0, 2}));
}

TEST(FusionStrategyTest, a_first_tensor_above_the_threshold_goes_alone) {
  EXPECT_EQ(merged({{500, 1, 0}, {1, 1, 0}}, 100), Indices{0});
  EXPECT_EQ(merged({{1, 1, 0}, {1, 1, 0}}, 0), Indices{0});
}

TEST(FusionStrategyTest, tensors_without_elements_join_a_full_bucket) {
  EXPECT_EQ(merged({{100, 1, 0}, {0, 1, 0}, {1, 1, 0}}, 100), (Indices{0, 1}));
}

TEST(FusionStrategyTest, only_equal_keys_share_and_key_0_never_does) {
  EXPECT_EQ(merged({{4, 1, 0}, {4, 2, 0}, {4, 0, 0}, {4, 1, 0}}, 100), (Indices{0, 3}));
  EXPECT_EQ(merged({{4, 0, 0}, {4, 0, 0}}, 100), Indices{0});
}

TEST(FusionStrategyTest, a_group_is_never_separated) {
  // It does not fit behind the first: it waits whole, and what fits overtakes it.
  EXPECT_EQ(merged({{50, 1, 0}, {30, 1, 7}, {30, 1, 7}, {10, 1, 0}}, 100), (Indices{0, 3}));
  // It comes first and is too large: a bucket of its own.
  EXPECT_EQ(merged({{80, 1, 7}, {80, 1, 7}, {1, 1, 0}}, 100), (Indices{0, 1}));
  EXPECT_EQ(merged({{10, 1, 7}, {10, 1, 7}, {10, 1, 8}, {10, 1, 0}}, 100), (Indices{0, 1, 2, 3}));
}

TEST(FusionStrategyTest, any_queue_empties_and_every_bucket_keeps_the_rules) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<FusionCandidate> ready;
    for (std::uint64_t group = 1; ready.size() < 40; ++group) {
      const std::uint64_t key = random() % 3;
      const bool grouped = random() % 4 == 0;
      for (unsigned i = 0; i < (grouped ? 3U : 1U); ++i) {
        ready.push_back({random() % 60, key, grouped ? group : 0});
      }
    }
    while (!ready.empty()) {
      const Indices bucket = merged(ready, 100);
      ASSERT_EQ(bucket, merged(ready, 100)) << "the same input gives the same bucket";
      ASSERT_FALSE(bucket.empty());
      ASSERT_EQ(bucket.front(), 0U) << "nobody starves";
      std::uint64_t bytes = 0;
      std::vector<FusionCandidate> taken;
      for (std::size_t i = 0; i < bucket.size(); ++i) {
        ASSERT_TRUE(i == 0 || bucket[i - 1] < bucket[i]);
        taken.push_back(ready.at(bucket[i]));
        bytes += taken.back().bytes;
        ASSERT_EQ(taken.back().key, taken.front().key);
      }
      const bool one_unit = taken.size() == 1 ||
                            (taken.front().group != 0 && taken.front().group == taken.back().group);
      ASSERT_TRUE(one_unit || bytes <= 100);
      ASSERT_TRUE(taken.front().key != 0 || taken.size() == 1);
      for (auto index = bucket.rbegin(); index != bucket.rend(); ++index) {
        ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(*index));
      }
      if (taken.front().key != 0) {
        for (const FusionCandidate& left : ready) {
          for (const FusionCandidate& gone : taken) {
            ASSERT_TRUE(left.group == 0 || left.group != gone.group);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::strategy_test
