// Parsing, printing and choosing addresses.
#include "lightcc/net/socket_address.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

namespace lightcc::socket_address_test {
namespace {

std::string resolved(const std::string& text) {
  const auto address = SocketAddress::resolve(text);
  return address.ok() ? address.value().to_string() : address.status().message();
}

TEST(SocketAddressTest, numeric_addresses_survive_a_round_trip) {
  for (const std::string text :
       {"1.2.3.4:5", "0.0.0.0:0", "127.0.0.1:65535", "[::1]:80", "[2001:db8::7]:12345", "[::]:0"}) {
    EXPECT_EQ(resolved(text), text);
  }
}

TEST(SocketAddressTest, malformed_addresses_are_the_callers_fault) {
  for (const std::string text : {"",
                                 ":",
                                 ":5",
                                 "host",
                                 "host:",
                                 "host:x",
                                 "host:-1",
                                 "host:+1",
                                 "host:65536",
                                 "host:99999999999999999999",
                                 "::1:5",
                                 "[::1]",
                                 "[]:5",
                                 "[::1:5",
                                 "1.2.3.4:5 ",
                                 "1.2.3.4: 5"}) {
    const auto address = SocketAddress::resolve(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(address.status().message().find("'" + text + "'"), std::string::npos);
  }
}

TEST(SocketAddressTest, an_unknown_name_is_named) {
  const auto address = SocketAddress::resolve("no-such-host.invalid:5");
  ASSERT_FALSE(address.ok());
  EXPECT_NE(address.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST(SocketAddressTest, localhost_is_loopback) {
  const auto address = SocketAddress::resolve("localhost:7");
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_TRUE(address.value().is_loopback());
  EXPECT_EQ(address.value().port(), 7);
}

TEST(SocketAddressTest, loopback_is_recognised_in_all_forms) {
  for (const std::string text :
       {"127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1"}) {
    EXPECT_TRUE(SocketAddress::resolve(text).value().is_loopback()) << text;
  }
  for (const std::string text : {"10.0.0.1:1", "128.0.0.1:1", "[::2]:1", "[::ffff:10.0.0.1]:1"}) {
    EXPECT_FALSE(SocketAddress::resolve(text).value().is_loopback()) << text;
  }
}

TEST(SocketAddressTest, with_port_changes_only_the_port) {
  EXPECT_EQ(SocketAddress::resolve("1.2.3.4:5").value().with_port(6).to_string(), "1.2.3.4:6");
  EXPECT_EQ(SocketAddress::resolve("[::1]:5").value().with_port(6).to_string(), "[::1]:6");
}

TEST(SocketAddressTest, abstract_names_print_with_an_at_sign) {
  const SocketAddress address = SocketAddress::abstract_unix("lightcc-7");
  EXPECT_EQ(address.family(), AF_UNIX);
  EXPECT_EQ(address.to_string(), "@lightcc-7");
  EXPECT_EQ(address.port(), 0);
  EXPECT_FALSE(address.is_loopback());
}

TEST(SocketAddressTest, abstract_names_that_are_too_long_stay_distinct) {
  const std::string common(200, 'x');
  const std::string a = SocketAddress::abstract_unix(common + "a").to_string();
  const std::string b = SocketAddress::abstract_unix(common + "b").to_string();
  EXPECT_NE(a, b);
  EXPECT_LT(a.size(), 108U);
  const std::string longest(107, 'y');
  EXPECT_EQ(SocketAddress::abstract_unix(longest).to_string(), "@" + longest);
}

TEST(SocketAddressTest, nothing_is_not_an_address) {
  EXPECT_EQ(SocketAddress().to_string(), "(no address)");
  EXPECT_EQ(SocketAddress::from_sockaddr(nullptr, 16).length(), 0U);
}

TEST(InterfacesTest, loopback_is_listed_and_marked) {
  const auto interfaces = list_interfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status().message();
  EXPECT_TRUE(std::ranges::any_of(interfaces.value(), [](const Interface& entry) {
    return entry.is_loopback && entry.address.is_loopback() && entry.address.port() == 0;
  }));
}

TEST(ChooseAddressTest, named_interface_wins_even_when_it_is_loopback) {
  const auto address = choose_address("lo", 0, "192.0.2.1:5");
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_TRUE(address.value().is_loopback());
  EXPECT_EQ(address.value().port(), 0);
}

TEST(ChooseAddressTest, local_ranks_take_the_named_interfaces_in_turn) {
  for (const int local_rank : {1, 3}) {
    const auto address = choose_address("lo, no-such-nic", local_rank, "");
    ASSERT_FALSE(address.ok());
    EXPECT_NE(address.status().message().find("'no-such-nic'"), std::string::npos);
  }
  for (const int local_rank : {0, 2}) {
    EXPECT_TRUE(choose_address("lo, no-such-nic", local_rank, "").ok());
  }
}

TEST(ChooseAddressTest, errors_list_the_candidates) {
  for (const auto& address : {choose_address("no-such-nic", 0, "127.0.0.1:5"),
                              choose_address("", 0, ""),
                              choose_address("", 0, "no-such-host.invalid:5")}) {
    ASSERT_FALSE(address.ok());
    EXPECT_EQ(address.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(address.status().message().find("lo (127.0.0.1)"), std::string::npos)
        << address.status().message();
  }
}

TEST(ChooseAddressTest, loopback_serves_a_rendezvous_on_loopback) {
  const auto address = choose_address("", 0, "127.0.0.1:5");
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_EQ(address.value().to_string(), "127.0.0.1:0");
}

TEST(ChooseAddressTest, a_rendezvous_on_an_own_address_gives_that_address) {
  const auto interfaces = list_interfaces();
  ASSERT_TRUE(interfaces.ok());
  for (const Interface& entry : interfaces.value()) {
    const auto address = choose_address("", 0, entry.address.with_port(5).to_string());
    ASSERT_TRUE(address.ok()) << address.status().message();
    EXPECT_EQ(address.value().to_string(), entry.address.to_string());
  }
}

}  // namespace
}  // namespace lightcc::socket_address_test
