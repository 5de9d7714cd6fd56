#include "lightcc/base/rng.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

namespace lightcc::rng_test {
namespace {

TEST(Rng, first_numbers_of_seed_zero_are_those_of_the_paper) {
  Rng rng(0);
  EXPECT_EQ(rng(), 0xe220a8397b1dcdafU);
  EXPECT_EQ(rng(), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(rng(), 0x06c45d188009454fU);
}

TEST(Rng, equal_seeds_draw_equal_numbers_and_others_do_not) {
  Rng first(7);
  Rng second(7);
  Rng other(8);
  int equal_to_other = 0;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t drawn = first();
    EXPECT_EQ(drawn, second());
    equal_to_other += drawn == other() ? 1 : 0;
  }
  EXPECT_EQ(equal_to_other, 0);
}

TEST(Rng, below_reaches_every_value_and_never_its_bound) {
  Rng rng(1);
  std::array<int, 7> drawn{};
  for (int i = 0; i < 7000; ++i) {
    const std::uint64_t value = rng.below(drawn.size());
    ASSERT_LT(value, drawn.size());
    ++drawn[static_cast<std::size_t>(value)];
  }
  for (const int count : drawn) {
    EXPECT_GT(count, 800);
    EXPECT_LT(count, 1200);
  }
}

TEST(Rng, below_accepts_the_extreme_bounds) {
  Rng rng(2);
  EXPECT_EQ(rng.below(0), 0U);
  EXPECT_EQ(rng.below(1), 0U);
  EXPECT_LT(rng.below(Rng::max()), Rng::max());
}

TEST(Rng, unit_stays_in_its_half_open_interval) {
  Rng rng(3);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = rng.unit();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

}  // namespace
}  // namespace lightcc::rng_test
