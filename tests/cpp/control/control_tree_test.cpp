// Who a leader speaks for.
#include "lightcc/control/control_tree.hpp"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc {
namespace {

const std::vector<std::int32_t> kAll = {0, 1, 2, 3, 4, 5};

// Hosts of unequal size, and ranks that are dealt out to them in turn.
const std::vector<std::vector<int>> kHosts = {{0, 3}, {1, 4, 5}, {2}};

TEST(ControlTreeTest, members_report_to_their_leader_and_leaders_to_each_other) {
  EXPECT_EQ(tree_parents(kHosts), (std::vector<int>{-1, 0, 0, 0, 1, 1}));
  std::vector<std::vector<int>> hosts(100);
  for (int h = 0; h < 100; ++h) {
    hosts[static_cast<std::size_t>(h)] = {h};
  }
  const std::vector<int> parents = tree_parents(hosts);
  EXPECT_EQ(parents[8], 0);
  EXPECT_EQ(parents[9], 1);
  EXPECT_EQ(parents[99], 12);
}

TEST(ControlTreeTest, a_leader_speaks_for_the_members_below_it) {
  ControlTree tree(tree_parents(kHosts));
  EXPECT_EQ(tree.active_below(0, 0, kAll), kAll);
  EXPECT_EQ(tree.active_below(1, 0, kAll), (std::vector<std::int32_t>{1, 4, 5}));
  EXPECT_EQ(tree.active_below(2, 0, kAll), (std::vector<std::int32_t>{2}));
  EXPECT_EQ(tree.active_below(1, 7, {0, 2, 5}), (std::vector<std::int32_t>{5}));
}

TEST(ControlTreeTest, ranks_that_joined_are_not_spoken_for_until_all_have) {
  ControlTree tree(tree_parents(kHosts));
  EXPECT_EQ(tree.active_below(1, 0, kAll).size(), 3U);
  tree.on_join(4);
  EXPECT_EQ(tree.active_below(1, 0, kAll), (std::vector<std::int32_t>{1, 5}));
  tree.on_all_joined();
  EXPECT_EQ(tree.active_below(1, 0, kAll).size(), 3U);
}

TEST(ControlTreeTest, a_number_of_a_process_set_may_come_back_for_other_ranks) {
  ControlTree tree(tree_parents(kHosts));
  EXPECT_EQ(tree.active_below(1, 3, {4}), (std::vector<std::int32_t>{4}));
  tree.on_process_set_changed();
  EXPECT_EQ(tree.active_below(1, 3, {1, 5}), (std::vector<std::int32_t>{1, 5}));
}

}  // namespace
}  // namespace lightcc
