// Who keeps others waiting, as the sequencer sees it.
#include <chrono>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/sequencer.hpp"

#include "control/negotiation.hpp"

namespace lightcc::sequencer_lateness_test {
namespace {

using testing::allreduce;
using testing::Negotiation;
using testing::world_of;

TEST(Lateness, counts_who_was_the_last_to_ask) {
  Negotiation n(world_of(3));
  for (const int last : {1, 2, 1}) {
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != last) {
        n.expect_ok(n.ask(rank, allreduce("a")));
      }
    }
    n.expect_ok(n.ask(last, allreduce("a")));
    n.run_one();
  }
  const Lateness lateness = n.sequencer.lateness(n.now);
  EXPECT_EQ(lateness.last_asked, (std::vector<std::uint64_t>{0, 2, 1}));
  EXPECT_TRUE(lateness.awaited.empty());
  EXPECT_EQ(lateness.awaited_s, 0);
}

TEST(Lateness, names_who_lacks_of_what_has_waited_longest) {
  Negotiation n(world_of(3));
  n.expect_ok(n.ask(0, allreduce("a")));
  n.expect_ok(n.ask(2, allreduce("a")));
  n.now += std::chrono::seconds(2);
  n.expect_ok(n.ask(1, allreduce("b")));
  n.now += std::chrono::seconds(3);
  const Lateness lateness = n.sequencer.lateness(n.now);
  EXPECT_EQ(lateness.awaited, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(lateness.awaited_s, 5);
}

TEST(Lateness, a_world_of_one_keeps_nobody_waiting) {
  Negotiation n(world_of(1));
  n.expect_ok(n.ask(0, allreduce("a")));
  n.run_one();
  EXPECT_EQ(n.sequencer.lateness(n.now).last_asked, (std::vector<std::uint64_t>{0}));
}

}  // namespace
}  // namespace lightcc::sequencer_lateness_test
