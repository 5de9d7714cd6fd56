// base/half.hpp against references that know only the formats: values are compared as exact
// numbers, and rounding by looking at both neighbours.
#include "lightcc/base/half.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace lightcc::half_test {
namespace {

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// The number that `half` stands for, by the definition of binary16. Not for NaN.
double half_value(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int fraction = half & 0x3ff;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) {
    return sign * std::numeric_limits<double>::infinity();
  }
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

bool is_half_nan(std::uint16_t half) {
  return (half & 0x7fff) > 0x7c00;
}

/// Round to nearest even by search: the largest magnitude not above |value|, or the next one.
std::uint16_t nearest_half(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  std::uint16_t low = 0;
  std::uint16_t high = 0x7c00;  // Infinity, as if it were 2^16.
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (half_value(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - half_value(low);
  const double above = (high == 0x7c00 ? 65536.0 : half_value(high)) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

TEST(half, every_half_widens_to_its_value) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const float wide = half_to_float(half);
    if (is_half_nan(half)) {
      // Sign, quiet bit, payload.
      ASSERT_EQ(bits_of(wide), ((i & 0x8000U) << 16) | 0x7fc00000U | ((i & 0x3ffU) << 13)) << i;
    } else {
      ASSERT_EQ(static_cast<double>(wide), half_value(half)) << i;
      ASSERT_EQ(std::signbit(wide), (half & 0x8000) != 0) << i;
    }
  }
}

TEST(half, every_half_survives_the_way_to_float_and_back) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const std::uint16_t quieted = is_half_nan(half) ? half | 0x0200 : half;
    ASSERT_EQ(float_to_half(half_to_float(half)), quieted) << i;
  }
}

TEST(half, floats_around_every_half_and_every_tie_round_to_nearest_even) {
  for (std::uint32_t i = 0; i < 0x7c00; ++i) {
    const double here = half_value(static_cast<std::uint16_t>(i));
    const double next = i + 1 == 0x7c00 ? 65536.0 : half_value(static_cast<std::uint16_t>(i + 1));
    for (const double center : {here, (here + next) / 2}) {  // Both are floats, exactly.
      const auto value = static_cast<float>(center);
      for (const float x :
           {value, std::nextafterf(value, 1e9F), std::nextafterf(value, -1e9F), -value}) {
        ASSERT_EQ(float_to_half(x), nearest_half(x)) << x;
      }
    }
  }
}

TEST(half, random_floats_round_to_nearest_even) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const auto x = std::bit_cast<float>(bits);
    if (std::isnan(x)) {
      ASSERT_EQ(float_to_half(x), ((bits >> 16) & 0x8000U) | 0x7e00U | ((bits >> 13) & 0x3ffU));
    } else {
      ASSERT_EQ(float_to_half(x), nearest_half(std::isinf(x) ? std::copysign(1e30F, x) : x)) << x;
    }
  }
}

TEST(half, the_extremes_are_where_the_format_has_them) {
  EXPECT_EQ(float_to_half(65504.0F), 0x7bff);
  EXPECT_EQ(float_to_half(65519.996F), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(float_to_half(0x1p-24F), 0x0001);
  EXPECT_EQ(float_to_half(0x1p-25F), 0x0000);
  EXPECT_EQ(float_to_half(-0x1p-25F), 0x8000);
  EXPECT_EQ(float_to_half(std::nextafterf(0x1p-25F, 1.0F)), 0x0001);
}

TEST(bfloat16, every_bfloat16_survives_the_way_to_float_and_back) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto narrow = static_cast<std::uint16_t>(i);
    const float wide = bfloat16_to_float(narrow);
    ASSERT_EQ(bits_of(wide), i << 16);
    ASSERT_EQ(float_to_bfloat16(wide), std::isnan(wide) ? (narrow | 0x0040) : narrow) << i;
  }
}

TEST(bfloat16, floats_round_to_the_nearer_neighbour_and_ties_to_even) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000000; ++i) {
    // The upper half random; the lower one often next to the tie.
    const auto upper = static_cast<std::uint32_t>(random()) & 0xffff0000U;
    const std::uint32_t lower =
        i % 2 == 0 ? 0x7fffU + static_cast<std::uint32_t>(random() % 3) : random() & 0xffffU;
    const auto x = std::bit_cast<float>(upper | lower);
    const auto down = static_cast<std::uint16_t>(upper >> 16);
    if (std::isnan(x)) {
      ASSERT_EQ(float_to_bfloat16(x), down | 0x0040);
      continue;
    }
    const bool up = lower > 0x8000U || (lower == 0x8000U && (down & 1) != 0);
    ASSERT_EQ(float_to_bfloat16(x), std::isinf(x) ? down : down + (up ? 1 : 0)) << x;
  }
}

TEST(bfloat16, the_largest_float_rounds_to_infinity) {
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::denorm_min()), 0x0000);
}

// Usable at compile time: the same function, the same bits.
static_assert(float_to_half(1.0F) == 0x3c00 && half_to_float(0x3c00) == 1.0F);
static_assert(float_to_bfloat16(1.0F) == 0x3f80 && bfloat16_to_float(0x3f80) == 1.0F);

}  // namespace
}  // namespace lightcc::half_test
