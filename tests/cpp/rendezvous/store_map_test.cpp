// The bounded map behind a store.
#include "lightcc/rendezvous/store_map.hpp"

#include <string>

#include <gtest/gtest.h>

#include "lightcc/wire/store_messages.hpp"

namespace lightcc::store_map_test {
namespace {

TEST(StoreMapTest, finds_what_was_set_last) {
  StoreMap map(kDefaultStoreCapacityBytes);
  EXPECT_EQ(map.find("a"), nullptr);
  ASSERT_TRUE(map.set("a", Bytes(3)).ok());
  const StoreMap::Value first = map.find("a");
  ASSERT_TRUE(map.set("a", Bytes(5)).ok());
  EXPECT_EQ(map.find("a")->size(), 5U);
  EXPECT_EQ(first->size(), 3U);  // Who holds a value keeps it.
}

TEST(StoreMapTest, removes_exactly_the_prefix) {
  StoreMap map(kDefaultStoreCapacityBytes);
  for (const char* key : {"a", "a/", "a/1", "a/2/3", "a0", "b"}) {
    ASSERT_TRUE(map.set(key, {}).ok());
  }
  map.remove_prefix("a/");
  for (const char* key : {"a", "a0", "b"}) {
    EXPECT_NE(map.find(key), nullptr) << key;
  }
  for (const char* key : {"a/", "a/1", "a/2/3"}) {
    EXPECT_EQ(map.find(key), nullptr) << key;
  }
  map.remove_prefix("");
  EXPECT_EQ(map.stored_bytes(), 0U);
}

TEST(StoreMapTest, shares_become_one_value_when_all_are_there) {
  StoreMap map(kDefaultStoreCapacityBytes);
  ASSERT_TRUE(map.add_share("a", 1, 3, Bytes(2, std::byte{7})).ok());
  ASSERT_TRUE(map.add_share("a", 1, 3, Bytes(2, std::byte{7})).ok())
      << "a repeated one counts once";
  ASSERT_TRUE(map.add_share("a", 2, 3, {}).ok());
  EXPECT_EQ(map.find("a"), nullptr);
  EXPECT_EQ(map.find("a/1")->size(), 2U);
  ASSERT_TRUE(map.add_share("a", 0, 3, Bytes(1, std::byte{9})).ok());
  EXPECT_EQ(
      *map.find("a"),
      (Bytes{std::byte{1}, std::byte{9}, std::byte{2}, std::byte{7}, std::byte{7}, std::byte{}}));
}

TEST(StoreMapTest, shares_that_were_removed_do_not_count) {
  StoreMap map(kDefaultStoreCapacityBytes);
  ASSERT_TRUE(map.add_share("a/b", 0, 2, {}).ok());
  map.remove_prefix("a/");
  ASSERT_TRUE(map.add_share("a/b", 1, 2, {}).ok());
  EXPECT_EQ(map.find("a/b"), nullptr);
  ASSERT_TRUE(map.add_share("a/b", 0, 2, {}).ok());
  EXPECT_NE(map.find("a/b"), nullptr);
}

TEST(StoreMapTest, a_full_map_says_so_and_keeps_what_it_has) {
  StoreMap map(2000);
  ASSERT_TRUE(map.set("a", Bytes(1500)).ok());
  const Status full = map.set("b", Bytes(1500));
  EXPECT_EQ(full.code(), ErrorCode::kSystem);
  EXPECT_NE(full.message().find("full"), std::string::npos);
  EXPECT_NE(full.message().find("'b'"), std::string::npos);
  EXPECT_EQ(map.set("a", Bytes(5000)).code(), ErrorCode::kSystem);
  EXPECT_EQ(map.find("a")->size(), 1500U);
  EXPECT_TRUE(map.set("a", Bytes(1600)).ok());  // What it replaces does not count twice.
  map.remove_prefix("a");
  EXPECT_TRUE(map.set("b", Bytes(1500)).ok());
}

TEST(StoreMapTest, empty_values_fill_it_too) {
  StoreMap map(100'000);
  std::size_t count = 0;
  while (map.set("key" + std::to_string(count), {}).ok()) {
    ASSERT_LT(++count, 2000U);
  }
  EXPECT_GT(count, 100U);
}

TEST(StoreMapTest, limits_are_the_callers_fault) {
  StoreMap map(kDefaultStoreCapacityBytes);
  EXPECT_EQ(map.set(std::string(kMaxStoreKeyBytes + 1, 'k'), {}).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(map.set("k", Bytes(kMaxStoreValueBytes + 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(map.stored_bytes(), 0U);
}

}  // namespace
}  // namespace lightcc::store_map_test
