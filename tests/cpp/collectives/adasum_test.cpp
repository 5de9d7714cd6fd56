// adasum_combine() against the formula in float64, level by level as the header tells it, and the
// properties that make Adasum what it is.
#include "lightcc/collectives/adasum.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"

namespace lightcc::adasum_test {
namespace {

using Vector = std::vector<double>;

std::vector<std::byte> encode(const Vector& values, DataType dtype) {
  const std::size_t size = element_size(dtype);
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    const std::uint16_t narrow =
        dtype == DataType::kFloat16 ? float_to_half(single) : float_to_bfloat16(single);
    const void* from = &narrow;
    if (dtype == DataType::kFloat32) {
      from = &single;
    } else if (dtype == DataType::kFloat64) {
      from = &values[i];
    }
    std::memcpy(bytes.data() + i * size, from, size);
  }
  return bytes;
}

Vector decode(const std::vector<std::byte>& bytes, DataType dtype) {
  const std::size_t size = element_size(dtype);
  Vector values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::byte* from = bytes.data() + i * size;
    std::uint16_t narrow = 0;
    float single = 0;
    switch (dtype) {
      case DataType::kFloat64:
        std::memcpy(&values[i], from, size);
        break;
      case DataType::kFloat32:
        std::memcpy(&single, from, size);
        values[i] = static_cast<double>(single);
        break;
      default:
        std::memcpy(&narrow, from, size);
        values[i] = static_cast<double>(dtype == DataType::kFloat16 ? half_to_float(narrow)
                                                                    : bfloat16_to_float(narrow));
        break;
    }
  }
  return values;
}

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Vector naive_pair(const Vector& a, const Vector& b) {
  const double a_factor = dot(a, a) > 0 ? 1 - dot(a, b) / (2 * dot(a, a)) : 1;
  const double b_factor = dot(b, b) > 0 ? 1 - dot(a, b) / (2 * dot(b, b)) : 1;
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum[i] = a_factor * a[i] + b_factor * b[i];
  }
  return sum;
}

Vector naive_tree(std::vector<Vector> level) {
  while (level.size() > 1) {
    std::vector<Vector> next;
    for (std::size_t k = 0; k + 1 < level.size(); k += 2) {
      next.push_back(naive_pair(level[k], level[k + 1]));
    }
    if (level.size() % 2 != 0) {
      next.push_back(level.back());
    }
    level = std::move(next);
  }
  return level.front();
}

/// Combines `inputs`, already encoded; `in_place` names the vector that is also the output, or -1.
std::vector<std::byte> combine(std::vector<std::vector<std::byte>> inputs,
                               DataType dtype,
                               int in_place = -1) {
  std::vector<const std::byte*> vectors;
  for (const auto& input : inputs) {
    vectors.push_back(input.data());
  }
  std::vector<std::byte> separate(inputs.front().size());
  std::vector<std::byte>& out =
      in_place < 0 ? separate : inputs[static_cast<std::size_t>(in_place)];
  adasum_combine(vectors, out.data(), out.size() / element_size(dtype), dtype);
  return out;
}

Vector random_vector(std::size_t count, std::mt19937& random) {
  Vector values(count);
  for (double& value : values) {
    value = static_cast<double>(static_cast<std::int32_t>(random())) * 0x1p-31;
  }
  return values;
}

class AdasumTypes : public testing::TestWithParam<DataType> {
 protected:
  /// Half a unit in the last place of 1.
  static double epsilon() {
    switch (GetParam()) {
      case DataType::kFloat16:
        return 0x1p-11;
      case DataType::kBfloat16:
        return 0x1p-8;
      case DataType::kFloat32:
        return 0x1p-24;
      default:
        return 0x1p-53;
    }
  }
};

TEST_P(AdasumTypes, agrees_with_the_formula_for_any_number_of_vectors_and_any_count) {
  std::mt19937 random(7);
  for (const std::size_t num_vectors :
       std::initializer_list<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 11, 16}) {
    for (const std::size_t count :
         std::initializer_list<std::size_t>{1, 7, 8, 9, 100, 4095, 4097, 9001}) {
      std::vector<std::vector<std::byte>> inputs;
      std::vector<Vector> exact;
      for (std::size_t k = 0; k < num_vectors; ++k) {
        inputs.push_back(encode(random_vector(count, random), GetParam()));
        exact.push_back(decode(inputs.back(), GetParam()));
      }
      const Vector expected = naive_tree(exact);
      const Vector found = decode(combine(inputs, GetParam()), GetParam());
      // Rounded once at the output; inner nodes and dot products err far less, or, for float64, by
      // their own number of roundings.
      const double largest =
          std::fabs(*std::max_element(expected.begin(), expected.end(), [](double x, double y) {
            return std::fabs(x) < std::fabs(y);
          }));
      const double roundings = GetParam() == DataType::kFloat64 ? static_cast<double>(count) : 8.0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(found[i], expected[i], roundings * epsilon() * (1 + largest))
            << num_vectors << " vectors, element " << i << " of " << count;
      }
    }
  }
}

TEST_P(AdasumTypes, out_may_be_any_of_the_vectors) {
  std::mt19937 random(8);
  std::vector<std::vector<std::byte>> inputs;
  for (int k = 0; k < 5; ++k) {
    inputs.push_back(encode(random_vector(1001, random), GetParam()));
  }
  const auto expected = combine(inputs, GetParam());
  for (int k = 0; k < 5; ++k) {
    EXPECT_EQ(combine(inputs, GetParam(), k), expected) << k;
  }
}

TEST_P(AdasumTypes, equal_vectors_give_that_vector) {
  std::mt19937 random(9);
  const auto input = encode(random_vector(777, random), GetParam());
  for (const std::size_t num_vectors : std::initializer_list<std::size_t>{1, 2, 4, 8}) {
    EXPECT_EQ(combine(std::vector(num_vectors, input), GetParam()), input) << num_vectors;
  }
}

TEST_P(AdasumTypes, orthogonal_vectors_add) {
  const auto a = encode({3, 0, -2, 0, 0}, GetParam());
  const auto b = encode({0, 5, 0, 0, 1}, GetParam());
  EXPECT_EQ(decode(combine({a, b}, GetParam()), GetParam()), (Vector{3, 5, -2, 0, 1}));
}

TEST_P(AdasumTypes, zeros_and_null_change_nothing) {
  const auto a = encode({3, 1, -2}, GetParam());
  const auto zeros = encode({0, 0, 0}, GetParam());
  EXPECT_EQ(combine({a, zeros}, GetParam()), a);
  EXPECT_EQ(combine({zeros, a, zeros}, GetParam()), a);
  EXPECT_EQ(combine({zeros, zeros}, GetParam()), zeros);
  std::vector<std::byte> out(a.size());
  const std::vector<const std::byte*> vectors{nullptr, a.data()};
  adasum_combine(vectors, out.data(), 3, GetParam());
  EXPECT_EQ(out, a);
}

INSTANTIATE_TEST_SUITE_P(types,
                         AdasumTypes,
                         testing::Values(DataType::kFloat16,
                                         DataType::kBfloat16,
                                         DataType::kFloat32,
                                         DataType::kFloat64),
                         [](const auto& type) { return data_type_name(type.param); });

TEST(adasum, the_odd_vector_joins_after_the_pairs) {
  std::mt19937 random(10);
  const Vector a = random_vector(50, random);
  const Vector b = random_vector(50, random);
  const Vector c = random_vector(50, random);
  const Vector found = decode(combine({encode(a, DataType::kFloat64),
                                       encode(b, DataType::kFloat64),
                                       encode(c, DataType::kFloat64)},
                                      DataType::kFloat64),
                              DataType::kFloat64);
  const Vector right = naive_pair(naive_pair(a, b), c);
  const Vector wrong = naive_pair(a, naive_pair(b, c));
  double distance = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], right[i], 1e-14);
    distance = std::max(distance, std::fabs(found[i] - wrong[i]));
  }
  EXPECT_GT(distance, 1e-3);  // The other tree would be told apart.
}

TEST(adasum, a_nan_spreads_and_nothing_breaks) {
  const auto a = encode({std::numeric_limits<double>::quiet_NaN(), 1}, DataType::kFloat32);
  const auto b = encode({1, 1}, DataType::kFloat32);
  EXPECT_TRUE(std::isnan(decode(combine({a, b}, DataType::kFloat32), DataType::kFloat32)[0]));
}

TEST(adasum, products_of_large_float32_do_not_overflow) {
  const auto a = encode({3e38, 0}, DataType::kFloat32);
  const auto b = encode({0, -3e38}, DataType::kFloat32);
  const Vector found = decode(combine({a, b}, DataType::kFloat32), DataType::kFloat32);
  EXPECT_EQ(found, (Vector{static_cast<double>(3e38F), static_cast<double>(-3e38F)}));
}

TEST(adasum, no_elements_and_no_vectors_are_no_work) {
  std::byte out{42};
  const std::vector<const std::byte*> vectors{&out};
  adasum_combine(vectors, &out, 0, DataType::kFloat32);
  adasum_combine({}, &out, 1, DataType::kFloat32);
  EXPECT_EQ(out, std::byte{42});
}

// The hash was computed by another program from the order of additions that adasum.cpp states.
TEST(adasum, bits_are_those_of_every_other_machine) {
  std::mt19937 random(11);
  std::vector<std::vector<std::byte>> inputs;
  for (int k = 0; k < 5; ++k) {
    inputs.push_back(encode(random_vector(10007, random), DataType::kFloat32));
  }
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const std::byte byte : combine(inputs, DataType::kFloat32)) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 0x5c8dc6bd92e293bdU);
}

}  // namespace
}  // namespace lightcc::adasum_test
