#include "protocol/receive_window.hpp"

#include <cstdint>
#include <set>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "base/serial.hpp"

namespace harp::receive_window_test {
namespace {

using Verdict = ReceiveWindow::Verdict;

TEST(ReceiveWindow, accepts_each_number_once_across_the_wrap) {
  ReceiveWindow window(0xfffffff0, 64);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const Psn psn = 0xfffffff0 + i;
    EXPECT_EQ(window.examine(psn), Verdict::kNew);
    window.accept(psn);
    EXPECT_EQ(window.examine(psn), Verdict::kDuplicate);
    EXPECT_EQ(window.cum(), psn + 1);
  }
}

TEST(ReceiveWindow, what_lies_outside_is_refused) {
  const ReceiveWindow window(100, 64);
  EXPECT_EQ(window.examine(99), Verdict::kDuplicate);
  EXPECT_EQ(window.examine(163), Verdict::kNew);
  EXPECT_EQ(window.examine(164), Verdict::kOutside);
  EXPECT_EQ(window.examine(100 + (1U << 30)), Verdict::kOutside);
}

TEST(ReceiveWindow, what_arrived_beyond_the_hole_is_a_duplicate_and_named_by_sack_words) {
  for (const Psn first : {0U, 7U, 63U, 0xffffffc1U, 0xfffffff8U}) {
    Rng rng(first + 1);
    ReceiveWindow window(first, 256);
    std::set<Psn> arrived;
    for (int i = 0; i < 120; ++i) {
      const Psn psn = first + 1 + static_cast<Psn>(rng.below(255));
      const bool is_new = arrived.insert(psn).second;
      ASSERT_EQ(window.examine(psn), is_new ? Verdict::kNew : Verdict::kDuplicate);
      if (is_new) {
        window.accept(psn);
      }
    }
    AckBody ack;
    window.fill(ack);
    EXPECT_EQ(ack.cum_psn, first);
    for (std::uint32_t i = 0; i < 256; ++i) {
      const bool reported = i / 64 < ack.sack_words && ((ack.sack[i / 64] >> (i % 64)) & 1) != 0;
      EXPECT_EQ(reported, arrived.count(first + i) == 1) << first << " + " << i;
    }
  }
}

TEST(ReceiveWindow, without_holes_there_are_no_sack_words) {
  ReceiveWindow window(5, 64);
  window.accept(5);
  AckBody ack;
  window.fill(ack);
  EXPECT_EQ(ack.sack_words, 0);
  window.accept(7);
  window.fill(ack);
  EXPECT_EQ(ack.sack_words, 1);
  window.accept(6);
  window.fill(ack);
  EXPECT_EQ(ack.sack_words, 0);
  EXPECT_EQ(ack.cum_psn, 8U);
}

}  // namespace
}  // namespace harp::receive_window_test
