// shard_range() and the numbers that go with it.
#include "lightcc/compression/residual/shard.hpp"

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
          const ShardRange shard = shard_range(numel, n, j, dtype);
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
        const ShardRange shard = shard_range(numel, 5, j, dtype);
        EXPECT_EQ(shard.begin % line, 0U);
        minimum = std::min(minimum, shard.size_elems());
        maximum = std::max(maximum, shard.size_elems());
      }
      EXPECT_LE(maximum - minimum, line);
    }
  }
}

TEST(Shard, a_tiny_tensor_leaves_later_shards_empty) {
  EXPECT_EQ(shard_range(3, 4, 0, DataType::kFloat32), (ShardRange{0, 3}));
  EXPECT_EQ(shard_range(3, 4, 3, DataType::kFloat32), (ShardRange{3, 3}));
}

}  // namespace
}  // namespace lightcc::shard_test
