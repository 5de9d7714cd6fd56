// Which exchange is the cheapest.
#include "lightcc/compression/topk/topk_plan.hpp"

#include <gtest/gtest.h>

namespace lightcc::topk_plan_test {
namespace {

constexpr std::size_t kElements = std::size_t{1} << 24;
constexpr TopkFormat kFloat{.dtype = DataType::kFloat32};

TopkExchange exchange(std::size_t blocks, double ratio, const TopkFormat& format = kFloat) {
  return plan_topk(kElements, 2, blocks, ratio, format).exchange;
}

TEST(TopkPlan, few_blocks_exchange_lists) {
  EXPECT_EQ(exchange(2, 0.01), TopkExchange::kLists);
  EXPECT_EQ(exchange(64, 0.01), TopkExchange::kLists);
}

TEST(TopkPlan, many_blocks_exchange_pieces) {
  EXPECT_EQ(exchange(80, 0.01), TopkExchange::kPieces);
  EXPECT_EQ(exchange(8, 0.12), TopkExchange::kPieces);
}

TEST(TopkPlan, a_ratio_of_one_is_dense) {
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const std::size_t blocks : {2U, 3U, 5U, 16U, 100U}) {
      EXPECT_EQ(exchange(blocks, 1.0, {.dtype = dtype}), TopkExchange::kDense)
          << data_type_name(dtype) << blocks;
    }
  }
  EXPECT_EQ(exchange(2, 1.0, {.dtype = DataType::kFloat32, .fp16 = true}), TopkExchange::kDense);
}

TEST(TopkPlan, few_entries_are_gathered_as_lists_within_a_block) {
  EXPECT_TRUE(plan_topk(kElements, 2, 2, 0.01, kFloat).gather_lists);
  EXPECT_FALSE(plan_topk(kElements, 2, 2, 0.25, kFloat).gather_lists);
}

TEST(TopkPlan, a_tensor_smaller_than_its_shards_has_a_plan) {
  EXPECT_NO_FATAL_FAILURE(plan_topk(1, 8, 2, 0.01, kFloat));
}

TEST(TopkK, is_the_ratio_rounded_up_within_one_and_all) {
  EXPECT_EQ(topk_k(0, 0.5), 0U);
  EXPECT_EQ(topk_k(1, 0.001), 1U);
  EXPECT_EQ(topk_k(100, 0.0), 1U);
  EXPECT_EQ(topk_k(100, -1.0), 1U);
  EXPECT_EQ(topk_k(100, 0.011), 2U);
  EXPECT_EQ(topk_k(100, 1.0), 100U);
  EXPECT_EQ(topk_k(100, 7.0), 100U);
}

TEST(TopkK, rounding_of_the_ratio_adds_no_element) {
  EXPECT_EQ(topk_k(100, 0.07), 7U);  // 0.07 * 100 > 7
  EXPECT_EQ(topk_k(1000000, 0.01), 10000U);
  EXPECT_EQ(topk_k(3, 1.0 / 3.0), 1U);
}

TEST(TopkCapacity, is_a_quarter_more_and_at_most_all) {
  EXPECT_EQ(topk_capacity(0, 0), 0U);
  EXPECT_EQ(topk_capacity(1, 10), 2U);
  EXPECT_EQ(topk_capacity(4, 10), 5U);
  EXPECT_EQ(topk_capacity(5, 10), 7U);
  EXPECT_EQ(topk_capacity(9, 10), 10U);
}

TEST(WarmupRatio, falls_from_a_quarter_to_the_ratio_by_a_constant_factor) {
  EXPECT_EQ(topk_warmup_ratio(0, 4, 0.01), 0.25);
  const double factor = topk_warmup_ratio(1, 4, 0.01) / 0.25;
  EXPECT_NEAR(factor, 0.4472136, 1e-6);  // 0.04 to the power of 1/4
  for (std::size_t step = 1; step < 4; ++step) {
    EXPECT_NEAR(
        topk_warmup_ratio(step, 4, 0.01) / topk_warmup_ratio(step - 1, 4, 0.01), factor, 1e-6);
  }
}

TEST(WarmupRatio, is_the_ratio_itself_afterwards_and_without_a_warm_up) {
  EXPECT_EQ(topk_warmup_ratio(4, 4, 0.01), 0.01);
  EXPECT_EQ(topk_warmup_ratio(1000, 4, 0.01), 0.01);
  EXPECT_EQ(topk_warmup_ratio(0, 0, 0.01), 0.01);
  EXPECT_EQ(topk_warmup_ratio(0, 4, 0.5), 0.5);  // Nothing to come down from.
}

}  // namespace
}  // namespace lightcc::topk_plan_test
