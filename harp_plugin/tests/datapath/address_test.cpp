#include "datapath/address.hpp"

#include <cstddef>

#include <gtest/gtest.h>

namespace harp::address_test {
namespace {

TEST(Address, is_written_as_people_write_it) {
  Address v4{.port = 4791};
  v4.ip[0] = std::byte{192};
  v4.ip[2] = std::byte{2};
  v4.ip[3] = std::byte{255};
  EXPECT_EQ(to_string(v4), "192.0.2.255:4791");

  Address v6{.family = 6, .port = 65535};
  v6.ip[0] = std::byte{0x20};
  v6.ip[1] = std::byte{0x01};
  v6.ip[2] = std::byte{0x0d};
  v6.ip[3] = std::byte{0xb8};
  v6.ip[15] = std::byte{1};
  EXPECT_EQ(to_string(v6), "[2001:db8::1]:65535");
}

}  // namespace
}  // namespace harp::address_test
