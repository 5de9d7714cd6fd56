// Cutting and packing: every element is in exactly one piece, and a bucket reads like one vector.
#include "lightcc/collectives/share_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"

namespace lightcc::share_plan_test {
namespace {

TEST(SharePlan, even_pieces_cover_the_vector_in_order_and_stay_small) {
  for (const std::size_t total : {0U, 1U, 15U, 16U, 17U, 1000U, 4096U, 99991U}) {
    for (const std::size_t members : {1U, 2U, 3U, 7U, 17U}) {
      const SharePlan plan = SharePlan::even(total, 4, members, 1000);
      EXPECT_EQ(plan.piece_bytes(), 1024U);
      std::size_t next = 0;
      std::vector<std::size_t> owned(members);
      for (std::size_t chunk = 0; chunk < plan.chunks(); ++chunk) {
        for (std::size_t member = 0; member < members; ++member) {
          const ElementRange piece = plan.piece(chunk, member);
          EXPECT_LE(piece.count * 4, plan.piece_bytes());
          if (piece.count != 0) {
            EXPECT_EQ(piece.first, next);
          }
          next += piece.count;
          owned[member] += piece.count;
        }
      }
      EXPECT_EQ(next, total);
      const auto [minimum, maximum] = std::minmax_element(owned.begin(), owned.end());
      EXPECT_LE((*maximum - *minimum) * 4, 128U) << total << " among " << members;
    }
  }
}

TEST(SharePlan, even_pieces_of_huge_vectors_do_not_overflow) {
  const std::size_t total = (std::size_t{1} << 60) + 12345;
  const SharePlan plan = SharePlan::even(total, 8, 16, std::size_t{64} << 10);
  const std::size_t last = plan.chunks() - 1;
  const ElementRange piece = plan.piece(last, 15);
  EXPECT_EQ(piece.first + piece.count, total);
  EXPECT_EQ(plan.piece(last, 14).first + plan.piece(last, 14).count, piece.first);
}

TEST(SharePlan, counted_pieces_stay_within_their_member) {
  const std::vector<std::size_t> counts{0, 300, 1, 256, 0, 257};
  const SharePlan plan = SharePlan::by_counts(counts, 4, 1024);
  EXPECT_EQ(plan.chunks(), 2U);
  std::size_t start = 0;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    std::size_t next = start;
    for (std::size_t chunk = 0; chunk < plan.chunks(); ++chunk) {
      const ElementRange piece = plan.piece(chunk, member);
      EXPECT_EQ(piece.first, next);
      next += piece.count;
    }
    start += counts[member];
    EXPECT_EQ(next, start);
  }
}

TEST(BucketView, neighbouring_tensors_are_one_piece_and_others_are_not) {
  std::vector<std::byte> in(400);
  std::vector<std::byte> out(400);
  const BucketView joined({{.in = in.data(), .out = out.data(), .count = 25},
                           {.in = nullptr, .out = nullptr, .count = 0},
                           {.in = in.data() + 100, .out = out.data() + 100, .count = 75}},
                          4);
  EXPECT_FALSE(joined.scattered());
  EXPECT_EQ(joined.contiguous_in({.first = 20, .count = 80}), in.data() + 80);
  EXPECT_EQ(joined.contiguous_out({.first = 99, .count = 1}), out.data() + 396);
  const BucketView apart({{.in = in.data(), .out = out.data(), .count = 25},
                          {.in = in.data() + 100, .out = out.data() + 104, .count = 74}},
                         4);
  EXPECT_TRUE(apart.scattered());
  EXPECT_EQ(apart.contiguous_in({.first = 20, .count = 6}), in.data() + 80) << "of one side";
  EXPECT_EQ(apart.contiguous_out({.first = 20, .count = 6}), nullptr);
  EXPECT_EQ(apart.contiguous_out({.first = 20, .count = 5}), out.data() + 80);
  EXPECT_EQ(apart.contiguous_out({.first = 25, .count = 74}), out.data() + 104);
}

TEST(BucketView, packing_and_unpacking_are_inverse_and_null_is_zero) {
  std::vector<std::uint16_t> first{1, 2, 3};
  std::vector<std::uint16_t> second{4, 5, 6, 7};
  std::vector<std::uint16_t> first_out(3, 99);
  std::vector<std::uint16_t> second_out(4, 99);
  const auto raw = [](std::vector<std::uint16_t>& values) {
    return std::as_writable_bytes(std::span(values)).data();
  };
  const BucketView bucket({{.in = raw(first), .out = raw(first_out), .count = 3},
                           {.in = nullptr, .out = nullptr, .count = 2},
                           {.in = raw(second), .out = raw(second_out), .count = 4}},
                          2);
  std::vector<std::uint16_t> packed(9, 77);
  bucket.pack({.first = 1, .count = 7}, raw(packed));
  EXPECT_EQ(packed, (std::vector<std::uint16_t>{2, 3, 0, 0, 4, 5, 6, 77, 77}));
  bucket.unpack({.first = 1, .count = 7}, 2, std::as_bytes(std::span(packed)).subspan(2, 10));
  EXPECT_EQ(first_out, (std::vector<std::uint16_t>{99, 99, 3}));
  EXPECT_EQ(second_out, (std::vector<std::uint16_t>{4, 5, 99, 99}));
}

}  // namespace
}  // namespace lightcc::share_plan_test
