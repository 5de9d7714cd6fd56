// Every element is in one shard, and the order of a block's halves can neither deadlock nor
// overrun the lead.
#include "lightcc/collectives/grid/grid_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/chunk_schedule.hpp"

namespace lightcc::grid_plan_test {
namespace {

using Half = ChunkSchedule::Half;

TEST(GridPlan, shards_cover_the_bucket_in_order_at_cache_lines) {
  for (const std::size_t elements : {0U, 1U, 15U, 16U, 17U, 4095U, 4096U, 4097U, 99991U}) {
    for (const std::size_t element_bytes : {1U, 2U, 4U, 8U}) {
      for (const std::size_t members : {1U, 2U, 3U, 8U}) {
        const SharePlan plan = grid_plan(elements, element_bytes, members, 4096);
        std::size_t next = 0;
        for (std::size_t chunk = 0; chunk < plan.chunks(); ++chunk) {
          for (std::size_t member = 0; member < members; ++member) {
            const ElementRange shard = plan.piece(chunk, member);
            EXPECT_LE(shard.count * element_bytes, plan.piece_bytes());
            if (shard.count != 0) {
              EXPECT_EQ(shard.first, next);
              EXPECT_EQ(shard.first * element_bytes % 64, 0U);
            }
            next += shard.count;
          }
        }
        EXPECT_EQ(next, elements) << members << " members";
        EXPECT_LE(plan.piece_bytes() * members, 4096U);
      }
    }
  }
}

TEST(GridPlan, shards_are_alike_to_within_a_line_in_the_last_chunk_too) {
  const SharePlan plan = grid_plan(100'003, 4, 3, 4096);
  std::size_t minimum = plan.piece_bytes();
  std::size_t maximum = 0;
  for (std::size_t chunk = 0; chunk < plan.chunks(); ++chunk) {
    for (std::size_t member = 0; member < 3; ++member) {
      minimum = std::min(minimum, plan.piece(chunk, member).count * 4);
      maximum = std::max(maximum, plan.piece(chunk, member).count * 4);
    }
  }
  EXPECT_LE(maximum - minimum, 128U);  // One line, and the end that fills no line.
}

TEST(GridPlan, a_chunk_smaller_than_a_line_each_is_a_line_each) {
  const SharePlan plan = grid_plan(64, 4, 4, 1);
  EXPECT_EQ(plan.piece_bytes(), 64U);
  EXPECT_EQ(plan.chunks(), 1U);
}

TEST(GridPlan, pieces_make_as_many_chunks_as_all_counts_together) {
  // Elements of 4 bytes make ten chunks of 4000, however they are spread.
  for (const std::vector<std::size_t>& counts :
       {std::vector<std::size_t>{2500, 2500, 2500, 2500}, {10'000, 0, 0, 0}, {9000, 1000, 0, 0}}) {
    const std::size_t piece = grid_piece_bytes(counts, 4, 4000);
    EXPECT_EQ(piece, *std::ranges::max_element(counts) * 4 / 10);
  }
  EXPECT_EQ(grid_piece_bytes({0, 0}, 4, 4000), 1U);
  EXPECT_EQ(grid_piece_bytes({5, 7}, 4, 4000), 28U);
}

TEST(ChunkSchedule, every_chunk_is_scattered_then_gathered_within_the_lead) {
  for (const std::size_t lead : {0U, 1U, 2U, 3U, 8U}) {
    for (const std::size_t chunks : {0U, 1U, 2U, 3U, 4U, 5U, 20U}) {
      const ChunkSchedule plan(chunks, lead);
      ASSERT_EQ(plan.steps(), 2 * chunks);
      std::size_t scattered = 0;
      std::size_t gathered = 0;
      for (std::size_t i = 0; i < plan.steps(); ++i) {
        const ChunkSchedule::Step step = plan.step(i);
        std::size_t& next = step.half == Half::kScatter ? scattered : gathered;
        EXPECT_EQ(step.chunk, next);
        EXPECT_EQ(step.half == Half::kScatter ? plan.scatter_at(next) : plan.gather_at(next), i);
        ++next;
        EXPECT_LE(gathered, scattered);
        EXPECT_LE(scattered - gathered, plan.lead());
      }
      EXPECT_EQ(scattered, chunks);
      EXPECT_EQ(gathered, chunks);
    }
  }
}

TEST(ChunkSchedule, the_order_with_three_chunks_of_lead_is_the_documented_one) {
  const ChunkSchedule plan(5, 3);
  const std::vector<ChunkSchedule::Step> expected = {{Half::kScatter, 0},
                                                     {Half::kScatter, 1},
                                                     {Half::kScatter, 2},
                                                     {Half::kGather, 0},
                                                     {Half::kScatter, 3},
                                                     {Half::kGather, 1},
                                                     {Half::kScatter, 4},
                                                     {Half::kGather, 2},
                                                     {Half::kGather, 3},
                                                     {Half::kGather, 4}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(plan.step(i), expected[i]) << "step " << i;
  }
}

TEST(GridPlan, chunks_grow_more_slowly_than_buckets) {
  std::size_t before = 0;
  for (std::size_t bytes = 1; bytes <= std::size_t{1} << 34; bytes *= 4) {
    const std::size_t chunk = grid_chunk_bytes(bytes);
    EXPECT_GE(chunk, before);
    EXPECT_LE(chunk, std::max<std::size_t>(before * 2 + 2, std::size_t{256} << 10));
    before = chunk;
  }
}

}  // namespace
}  // namespace lightcc::grid_plan_test
