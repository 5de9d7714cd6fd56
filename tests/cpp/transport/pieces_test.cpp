// Every byte of a message is in one piece, whatever the cut; a cursor meets them all in order, and
// a set takes each once.
#include "lightcc/transport/channel/pieces.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace lightcc::pieces_test {
namespace {

constexpr Cut kCuts[] = {{.piece_bytes = 64, .ends_short = false},
                         {.piece_bytes = 64, .ends_short = true}};

TEST(PiecesTest, a_cursor_meets_every_byte_once_in_as_many_pieces_as_the_cut_counts) {
  for (const Cut& cut : kCuts) {
    PieceCursor next;
    for (std::size_t total = 0; total < 300; ++total) {
      ASSERT_EQ(next.message(), total);
      std::size_t covered = 0;
      std::uint64_t pieces = 0;
      for (; next.message() == total; next.step(cut, total)) {
        ASSERT_EQ(next.offset(), covered);
        covered += cut.length(total, next.offset());
        ++pieces;
      }
      EXPECT_EQ(covered, total);
      EXPECT_EQ(pieces, cut.count(total)) << total;
      EXPECT_EQ(next.offset(), 0U);
    }
  }
}

TEST(PiecesTest, the_last_piece_is_short_or_it_may_be_full) {
  const auto [may_be_full, is_short] = std::pair(kCuts[0], kCuts[1]);
  for (const Cut& cut : kCuts) {
    EXPECT_EQ(cut.count(0), 1U) << "an empty message is one empty piece";
    EXPECT_EQ(cut.count(63), 1U);
    EXPECT_EQ(cut.count(65), 2U);
  }
  EXPECT_EQ(may_be_full.count(64), 1U);
  EXPECT_EQ(may_be_full.count(128), 2U);
  EXPECT_EQ(is_short.count(64), 2U);
  EXPECT_EQ(is_short.count(128), 3U);
}

TEST(PiecesTest, lengths_beyond_four_gigabytes_are_counted) {
  constexpr std::uint64_t kHuge = (std::uint64_t{1} << 40) + 5;
  for (const Cut& cut : kCuts) {
    EXPECT_EQ(cut.count(kHuge), (std::uint64_t{1} << 34) + 1);
    EXPECT_EQ(cut.length(kHuge, kHuge - 5), 5U);
  }
  EXPECT_EQ(kCuts[0].count(std::numeric_limits<std::uint64_t>::max()), std::uint64_t{1} << 58);
}

TEST(PiecesTest, a_set_takes_every_piece_once_and_nothing_beyond) {
  for (const std::uint64_t count : {1U, 2U, 63U, 64U, 65U, 128U, 129U, 1000U}) {
    PieceSet set(count);
    for (const bool is_new : {true, false}) {
      for (std::uint64_t i = 0; i < count; ++i) {
        EXPECT_EQ(set.insert(i), is_new) << i << " of " << count;
      }
    }
    EXPECT_FALSE(set.insert(count));
    EXPECT_FALSE(set.insert(std::numeric_limits<std::uint64_t>::max()));
  }
  EXPECT_FALSE(PieceSet().insert(0));
}

}  // namespace
}  // namespace lightcc::pieces_test
