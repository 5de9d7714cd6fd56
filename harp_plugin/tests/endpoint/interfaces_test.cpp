#include "endpoint/interfaces.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/address.hpp"

namespace harp::interfaces_test {
namespace {

TEST(Interfaces, names_are_wanted_by_prefix) {
  EXPECT_TRUE(is_wanted("eth0", "eth"));
  EXPECT_TRUE(is_wanted("eth0", "eth0"));
  EXPECT_TRUE(is_wanted("ib1", "eth,ib"));
  EXPECT_TRUE(is_wanted("eth0", "eth,ib"));
  EXPECT_FALSE(is_wanted("eth0", "eth01"));
  EXPECT_FALSE(is_wanted("veth0", "eth"));
  EXPECT_FALSE(is_wanted("lo", "eth,ib"));
  EXPECT_FALSE(is_wanted("eth0", "Eth"));
}

TEST(Interfaces, an_equals_sign_asks_for_whole_names) {
  EXPECT_TRUE(is_wanted("eth0", "=eth0"));
  EXPECT_TRUE(is_wanted("eth1", "=eth0,eth1"));
  EXPECT_FALSE(is_wanted("eth01", "=eth0"));
  EXPECT_FALSE(is_wanted("eth0", "=eth"));
}

TEST(Interfaces, a_caret_asks_for_all_others) {
  EXPECT_FALSE(is_wanted("docker0", "^docker"));
  EXPECT_FALSE(is_wanted("lo", "^docker,lo"));
  EXPECT_TRUE(is_wanted("eth0", "^docker,lo"));
  EXPECT_FALSE(is_wanted("eth0", "^=eth0"));
  EXPECT_TRUE(is_wanted("eth01", "^=eth0"));
}

TEST(Interfaces, empty_items_stand_for_nothing) {
  EXPECT_FALSE(is_wanted("eth0", ""));
  EXPECT_FALSE(is_wanted("eth0", ","));
  EXPECT_FALSE(is_wanted("eth0", "="));
  EXPECT_TRUE(is_wanted("eth0", ",eth"));
  EXPECT_TRUE(is_wanted("eth0", "ib,,eth,"));
  EXPECT_FALSE(is_wanted("lo", "eth,"));
  EXPECT_TRUE(is_wanted("eth0", "^"));
  EXPECT_TRUE(is_wanted("eth0", "^,"));
  EXPECT_TRUE(is_wanted("eth0", "^="));
}

TEST(Interfaces, loopback_is_found_when_it_is_asked_for) {
  for (const std::string wanted : {"lo", "=lo"}) {
    const auto found = find_interfaces(wanted);
    const auto loopback = std::ranges::find(found, "lo", &Interface::name);
    ASSERT_NE(loopback, found.end());
    EXPECT_EQ(to_string(loopback->address), "127.0.0.1:0");
    EXPECT_GE(loopback->mtu_bytes, 1500U);
    EXPECT_GT(loopback->speed_mbps, 0);
    EXPECT_EQ(loopback->pci_path, "");
  }
}

TEST(Interfaces, what_nothing_matches_is_not_found) {
  EXPECT_TRUE(find_interfaces("=no-such-device").empty());
  EXPECT_TRUE(find_interfaces("=l").empty());
  for (const Interface& one : find_interfaces("^lo")) {
    EXPECT_FALSE(one.name.starts_with("lo"));
  }
}

TEST(Interfaces, without_a_wish_there_is_at_least_one_and_loopback_only_alone) {
  const auto found = find_interfaces("");
  ASSERT_FALSE(found.empty());
  std::set<std::string> names;
  for (const Interface& one : found) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name << " once";
    EXPECT_FALSE(one.name.starts_with("docker"));
    EXPECT_TRUE(one.address.family == 4 || one.address.family == 6);
    EXPECT_EQ(one.address.port, 0);
    EXPECT_GT(one.mtu_bytes, 0U);
  }
  EXPECT_TRUE(!names.contains("lo") || names.size() == 1);
}

}  // namespace
}  // namespace harp::interfaces_test
