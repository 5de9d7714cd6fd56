// Which exchange is the cheapest.
#include "lightcc/compression/topk_exchange.hpp"

#include <gtest/gtest.h>

namespace lightcc::topk_exchange_test {
namespace {

constexpr std::size_t kElements = std::size_t{1} << 24;
constexpr TopkFormat kFloat{.dtype = DataType::kFloat32};

TopkExchange exchange(std::size_t blocks, double ratio, const TopkFormat& format = kFloat) {
  return plan_topk(kElements, 2, blocks, ratio, format).exchange;
}

TEST(TopkExchange, few_blocks_exchange_lists) {
  EXPECT_EQ(exchange(2, 0.01), TopkExchange::kLists);
  EXPECT_EQ(exchange(64, 0.01), TopkExchange::kLists);
}

TEST(TopkExchange, many_blocks_exchange_pieces) {
  EXPECT_EQ(exchange(80, 0.01), TopkExchange::kPieces);
  EXPECT_EQ(exchange(8, 0.12), TopkExchange::kPieces);
}

TEST(TopkExchange, a_ratio_of_one_is_dense) {
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const std::size_t blocks : {2U, 3U, 5U, 16U, 100U}) {
      EXPECT_EQ(exchange(blocks, 1.0, {.dtype = dtype}), TopkExchange::kDense)
          << data_type_name(dtype) << blocks;
    }
  }
  EXPECT_EQ(exchange(2, 1.0, {.dtype = DataType::kFloat32, .fp16 = true}), TopkExchange::kDense);
}

TEST(TopkExchange, few_entries_are_gathered_as_lists_within_a_block) {
  EXPECT_TRUE(plan_topk(kElements, 2, 2, 0.01, kFloat).gather_lists);
  EXPECT_FALSE(plan_topk(kElements, 2, 2, 0.25, kFloat).gather_lists);
}

TEST(TopkExchange, a_tensor_smaller_than_its_shards_has_a_plan) {
  EXPECT_NO_FATAL_FAILURE(plan_topk(1, 8, 2, 0.01, kFloat));
}

}  // namespace
}  // namespace lightcc::topk_exchange_test
