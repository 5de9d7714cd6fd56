// topk_shard() and the numbers that go with it.
#include "lightcc/compression/shard.hpp"

#include <algorithm>
#include <cstddef>

#include <gtest/gtest.h>

namespace lightcc::shard_test {
namespace {

constexpr DataType kTypes[] = {
    DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64};

TEST(Shard, shards_are_adjacent_and_cover_the_tensor) {
  for (const DataType dtype : kTypes) {
    for (std::size_t numel = 0; numel < 300; ++numel) {
      for (std::size_t n = 1; n < 12; ++n) {
        std::size_t end = 0;
        for (std::size_t j = 0; j < n; ++j) {
          const ShardRange shard = topk_shard(numel, n, j, dtype);
          ASSERT_EQ(shard.begin, end);
          ASSERT_LE(shard.begin, shard.end);
          end = shard.end;
        }
        ASSERT_EQ(end, numel);
      }
    }
  }
}

TEST(Shard, shards_begin_at_cache_lines_and_differ_by_at_most_one) {
  for (const DataType dtype : kTypes) {
    const std::size_t line = 64 / element_size(dtype);
    for (const std::size_t numel : {line * 7, line * 1000, line * 65537}) {
      std::size_t minimum = numel;
      std::size_t maximum = 0;
      for (std::size_t j = 0; j < 5; ++j) {
        const ShardRange shard = topk_shard(numel, 5, j, dtype);
        EXPECT_EQ(shard.begin % line, 0U);
        minimum = std::min(minimum, shard.size_elems());
        maximum = std::max(maximum, shard.size_elems());
      }
      EXPECT_LE(maximum - minimum, line);
    }
  }
}

TEST(Shard, a_tiny_tensor_leaves_later_shards_empty) {
  EXPECT_EQ(topk_shard(3, 4, 0, DataType::kFloat32), (ShardRange{0, 3}));
  EXPECT_EQ(topk_shard(3, 4, 3, DataType::kFloat32), (ShardRange{3, 3}));
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
}  // namespace lightcc::shard_test
