// Lines that are fitted to the times of collectives.
#include "lightcc/fusion/cost_line.hpp"

#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace lightcc::cost_line_test {
namespace {

TEST(CostLineTest, nothing_seen_costs_nothing) {
  EXPECT_EQ(CostLine().samples(), 0U);
  EXPECT_EQ(CostLine().fit().seconds, 0);
  EXPECT_EQ(CostLine().fit().seconds_per_byte, 0);
}

TEST(CostLineTest, points_on_a_line_give_the_line) {
  CostLine line;
  for (const double bytes : {0.0, 64.0, 1e4, 1e6, 6.4e7}) {
    line.add(bytes, 30e-6 + 0.8e-9 * bytes);
  }
  EXPECT_EQ(line.samples(), 5U);
  EXPECT_NEAR(line.fit().seconds, 30e-6, 1e-10);
  EXPECT_NEAR(line.fit().seconds_per_byte, 0.8e-9, 1e-14);
}

TEST(CostLineTest, samples_of_one_size_are_all_fixed_cost) {
  CostLine line;
  for (int i = 0; i < 1000; ++i) {
    line.add(12345, 2e-3);
  }
  EXPECT_NEAR(line.fit().seconds, 2e-3, 1e-12);
  EXPECT_EQ(line.fit().seconds_per_byte, 0);
}

TEST(CostLineTest, neither_part_is_negative) {
  CostLine falling;
  falling.add(10, 3);
  falling.add(1000, 1);
  EXPECT_GT(falling.fit().seconds, 0);
  EXPECT_EQ(falling.fit().seconds_per_byte, 0);
  CostLine steep;
  steep.add(10, 1e-6);
  steep.add(1000, 1);
  EXPECT_EQ(steep.fit().seconds, 0);
  EXPECT_GT(steep.fit().seconds_per_byte, 0);
}

TEST(CostLineTest, late_ranks_and_noise_move_the_line_little) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> unit(0, 1);
    CostLine line;
    for (int i = 0; i < 500; ++i) {
      const double bytes = std::pow(10, 2 + 5.5 * unit(random));
      const double wait = unit(random) < 0.1 ? 10 * unit(random) : 0.2 * unit(random);
      line.add(bytes, (50e-6 + 1e-9 * bytes) * (1 + wait));
    }
    EXPECT_NEAR(line.fit().seconds, 50e-6, 15e-6);
    EXPECT_NEAR(line.fit().seconds_per_byte, 1e-9, 0.3e-9);
  }
}

TEST(CostLineTest, what_changes_is_learnt_anew) {
  CostLine line;
  for (int i = 0; i < 5000; ++i) {
    line.add(i % 2 == 0 ? 100 : 1e6, 1e-3);
  }
  for (int i = 0; i < 5000; ++i) {
    line.add(i % 2 == 0 ? 100 : 1e6, i % 2 == 0 ? 1e-4 : 5e-3);
  }
  EXPECT_NEAR(line.fit().seconds, 1e-4, 1e-5);
  EXPECT_NEAR(line.fit().seconds_per_byte, 4.9e-9, 0.1e-9);
}

}  // namespace
}  // namespace lightcc::cost_line_test
