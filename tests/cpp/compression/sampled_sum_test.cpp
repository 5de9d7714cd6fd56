// What two results have in common, and which steps are sampled.
#include "lightcc/compression/sampled_sum.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/topk_kernels.hpp"
#include "lightcc/compression/topk_store.hpp"

namespace lightcc::sampled_sum_test {
namespace {

template <typename T>
const std::byte* bytes_of(const std::vector<T>& elements) {
  return std::as_bytes(std::span(elements)).data();
}

void expect_sums(const SampleSums& sums, double dense, double given, double product, double error) {
  EXPECT_EQ(sums.dense, dense);
  EXPECT_EQ(sums.given, given);
  EXPECT_EQ(sums.product, product);
  EXPECT_EQ(sums.error, error);
}

TEST(SampledSum, sums_are_added_up_in_every_dtype) {
  const std::vector<double> dense{3.0, 0.0, -2.0};
  const std::vector<double> given{1.0, 4.0, -2.0};
  SampleSums sums;
  add_to_sums(DataType::kFloat64, bytes_of(dense), bytes_of(given), dense.size(), sums);
  expect_sums(sums, 13.0, 21.0, 7.0, 20.0);
  add_to_sums(DataType::kFloat64, bytes_of(dense), bytes_of(given), dense.size(), sums);
  expect_sums(sums, 26.0, 42.0, 14.0, 40.0);

  const std::vector<float> narrow_dense{3.0F, 0.0F, -2.0F};
  const std::vector<float> narrow_given{1.0F, 4.0F, -2.0F};
  sums = {};
  add_to_sums(DataType::kFloat32, bytes_of(narrow_dense), bytes_of(narrow_given), 3, sums);
  expect_sums(sums, 13.0, 21.0, 7.0, 20.0);

  const std::vector<std::uint16_t> three_in_float16(4, 0x4200);
  const std::vector<std::uint16_t> one_in_float16(4, 0x3c00);
  sums = {};
  add_to_sums(DataType::kFloat16, bytes_of(three_in_float16), bytes_of(one_in_float16), 4, sums);
  expect_sums(sums, 36.0, 4.0, 12.0, 16.0);

  const std::vector<std::uint16_t> three_in_bfloat16(4, 0x4040);
  const std::vector<std::uint16_t> one_in_bfloat16(4, 0x3f80);
  sums = {};
  add_to_sums(DataType::kBfloat16, bytes_of(three_in_bfloat16), bytes_of(one_in_bfloat16), 4, sums);
  expect_sums(sums, 36.0, 4.0, 12.0, 16.0);
}

TEST(SampledSum, every_so_many_steps_of_a_tensor_one_is_sampled) {
  TopkEntry entry;
  std::vector<std::uint64_t> sampled;
  for (entry.steps = 0; entry.steps < 10; ++entry.steps) {
    EXPECT_FALSE(is_sampled(entry, 0));
    EXPECT_TRUE(is_sampled(entry, 1));
    if (is_sampled(entry, 4)) {
      sampled.push_back(entry.steps);
    }
  }
  EXPECT_EQ(sampled, (std::vector<std::uint64_t>{3, 7}));
}

}  // namespace
}  // namespace lightcc::sampled_sum_test
