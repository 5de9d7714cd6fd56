// Vectors become orthonormal, whatever they were.
#include "lightcc/compression/orthonormal.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"

namespace lightcc::orthonormal_test {
namespace {

template <typename T>
class Orthonormal : public ::testing::Test {
 protected:
  static std::vector<T> random_vectors(std::size_t count, std::size_t length, std::uint64_t seed) {
    Rng rng(seed);
    std::vector<T> vectors(count * length);
    for (T& lane : vectors) {
      lane = static_cast<T>(2.0 * rng.unit() - 1.0);
    }
    return vectors;
  }

  static double dot(const std::vector<T>& vectors, std::size_t a, std::size_t b, std::size_t n) {
    long double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      sum += static_cast<long double>(vectors[a * n + i]) * vectors[b * n + i];
    }
    return static_cast<double>(sum);
  }

  /// Each vector is a unit, or zeros where `zeros` allows; returns how many are zeros.
  static std::size_t expect_orthonormal(const std::vector<T>& vectors,
                                        std::size_t count,
                                        std::size_t length) {
    const double tolerance = 8.0 * std::numeric_limits<T>::epsilon();
    std::size_t zeros = 0;
    for (std::size_t a = 0; a < count; ++a) {
      const double own = dot(vectors, a, a, length);
      zeros += own == 0.0 ? 1 : 0;
      if (own != 0.0) {
        EXPECT_NEAR(own, 1.0, tolerance) << a;
      }
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_NEAR(dot(vectors, a, b, length), 0.0, tolerance) << a << " " << b;
      }
    }
    return zeros;
  }
};

using Lanes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Orthonormal, Lanes);

TYPED_TEST(Orthonormal, random_vectors) {
  for (const std::size_t length : {1U, 2U, 7U, 64U, 1001U}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{7}}) {
      if (count <= length) {
        auto vectors = this->random_vectors(count, length, length + count);
        make_orthonormal(std::span(vectors), count, length);
        EXPECT_EQ(this->expect_orthonormal(vectors, count, length), 0U);
      }
    }
  }
}

TYPED_TEST(Orthonormal, nearly_parallel_vectors) {
  constexpr std::size_t kLength = 100;
  auto vectors = this->random_vectors(3, kLength, 5);
  for (std::size_t i = 0; i < kLength; ++i) {
    vectors[kLength + i] = vectors[i] + vectors[kLength + i] * static_cast<TypeParam>(1e-4);
  }
  make_orthonormal(std::span(vectors), 3, kLength);
  EXPECT_EQ(this->expect_orthonormal(vectors, 3, kLength), 0U);
}

TYPED_TEST(Orthonormal, sums_of_others_become_zeros) {
  constexpr std::size_t kLength = 100;
  auto vectors = this->random_vectors(4, kLength, 6);
  for (std::size_t i = 0; i < kLength; ++i) {
    vectors[2 * kLength + i] = 3 * vectors[i];
  }
  make_orthonormal(std::span(vectors), 4, kLength);
  EXPECT_EQ(this->expect_orthonormal(vectors, 4, kLength), 1U);
  EXPECT_EQ(vectors[2 * kLength], TypeParam{0});
}

TYPED_TEST(Orthonormal, zeros_stay_zeros) {
  std::vector<TypeParam> vectors(20);
  make_orthonormal(std::span(vectors), 2, 10);
  EXPECT_EQ(vectors, std::vector<TypeParam>(20));
}

TYPED_TEST(Orthonormal, more_vectors_than_dimensions_leave_zeros) {
  auto vectors = this->random_vectors(5, 3, 7);
  make_orthonormal(std::span(vectors), 5, 3);
  EXPECT_EQ(this->expect_orthonormal(vectors, 5, 3), 2U);
}

TYPED_TEST(Orthonormal, the_smallest_and_the_largest_numbers) {
  using Limits = std::numeric_limits<TypeParam>;
  for (const TypeParam size : {Limits::denorm_min(), Limits::min(), Limits::max() / 4}) {
    std::vector<TypeParam> vectors{size, 0, size, size, size, 0};
    make_orthonormal(std::span(vectors), 2, 3);
    EXPECT_EQ(this->expect_orthonormal(vectors, 2, 3), 0U) << size;
  }
}

TYPED_TEST(Orthonormal, what_would_be_zeros_is_filled_alike) {
  constexpr std::size_t kLength = 50;
  auto vectors = this->random_vectors(4, kLength, 8);
  for (std::size_t i = 0; i < kLength; ++i) {
    vectors[kLength + i] = vectors[i];
    vectors[2 * kLength + i] = 0;
  }
  auto again = vectors;
  make_orthonormal_and_fill(std::span(vectors), 4, kLength, 9);
  make_orthonormal_and_fill(std::span(again), 4, kLength, 9);
  EXPECT_EQ(this->expect_orthonormal(vectors, 4, kLength), 0U);
  EXPECT_EQ(vectors, again);
}

TYPED_TEST(Orthonormal, zeros_are_filled_up_to_a_whole_basis) {
  std::vector<TypeParam> vectors(9);
  make_orthonormal_and_fill(std::span(vectors), 3, 3, 10);
  EXPECT_EQ(this->expect_orthonormal(vectors, 3, 3), 0U);
}

}  // namespace
}  // namespace lightcc::orthonormal_test
