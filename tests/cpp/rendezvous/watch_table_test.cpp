// Which watches a change concerns.
#include "lightcc/rendezvous/watch_table.hpp"

#include <gtest/gtest.h>

namespace lightcc::watch_table_test {
namespace {

using Clients = std::vector<WatchTable::Client>;

TEST(WatchTableTest, a_change_is_due_where_it_is_below_the_prefix_and_not_known) {
  StoreMap map(kDefaultStoreCapacityBytes);
  WatchTable table;
  table.add(1, {"a/", map.state("a/")});
  table.add(2, {"b/", map.state("b/")});
  table.add(3, {"", map.state("")});
  EXPECT_EQ(table.due("a/1", map), Clients());  // Nothing has changed.
  ASSERT_TRUE(map.set("a/1", {}).ok());
  EXPECT_EQ(table.due("a/1", map), (Clients{1, 3}));
  table.add(1, {"a/", map.state("a/")});
  EXPECT_EQ(table.due("a/1", map), Clients{3});
  table.remove(3);
  EXPECT_EQ(table.find(3), nullptr);
  map.remove_prefix("");  // Above the prefix.
  EXPECT_EQ(table.due("", map), Clients{1});
}

TEST(WatchTableTest, states_tell_contents_apart) {
  StoreMap map(kDefaultStoreCapacityBytes);
  const std::uint64_t empty = map.state("a/");
  EXPECT_NE(empty, 0U);
  ASSERT_TRUE(map.set("a/1", {}).ok());
  const std::uint64_t one = map.state("a/");
  ASSERT_TRUE(map.set("a/1", {}).ok());
  const std::uint64_t set_again = map.state("a/");
  EXPECT_NE(one, set_again);
  EXPECT_NE(one, empty);
  ASSERT_TRUE(map.set("b", {}).ok());
  EXPECT_EQ(map.state("a/"), set_again);
  map.remove_prefix("a/");
  EXPECT_EQ(map.state("a/"), empty);
}

}  // namespace
}  // namespace lightcc::watch_table_test
