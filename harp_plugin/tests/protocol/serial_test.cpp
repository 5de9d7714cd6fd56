#include "base/serial.hpp"

#include <cstdint>

#include <gtest/gtest.h>

namespace harp::serial_test {
namespace {

TEST(Serial, numbers_before_the_wrap_lie_before_those_behind_it) {
  EXPECT_TRUE(serial_less(0xfffffff0, 5));
  EXPECT_FALSE(serial_less(5, 0xfffffff0));
  EXPECT_EQ(serial_distance(0xfffffff0, 5), 21);
  EXPECT_EQ(serial_distance(5, 0xfffffff0), -21);
  EXPECT_EQ(serial_max(0xfffffff0, 5), 5U);
  EXPECT_EQ(serial_max(5, 0xfffffff0), 5U);
}

TEST(Serial, a_number_does_not_lie_before_itself) {
  for (const std::uint32_t value : {0U, 1U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    EXPECT_FALSE(serial_less(value, value));
    EXPECT_TRUE(serial_less(value, value + 1));
    EXPECT_FALSE(serial_less(value + 1, value));
  }
}

}  // namespace
}  // namespace harp::serial_test
