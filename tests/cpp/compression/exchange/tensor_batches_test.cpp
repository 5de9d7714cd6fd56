#include "lightcc/compression/exchange/tensor_batches.hpp"

#include <gtest/gtest.h>

namespace lightcc::tensor_batches_test {
namespace {

using Batches = std::vector<TensorBatch>;

TEST(TensorBatches, small_tensors_are_one_batch) {
  const std::vector<std::size_t> elements(1000, 1000);
  EXPECT_EQ(cut_for_kernels(elements), Batches(1000, {.first = 0, .end = 1000}));
  EXPECT_EQ(cut_for_kernels({}), Batches());
}

TEST(TensorBatches, a_batch_ends_before_it_has_too_many_elements) {
  constexpr std::size_t kHalf = kKernelElements / 2;
  EXPECT_EQ(cut_for_kernels(std::vector{kHalf, kHalf, std::size_t{1}}),
            (Batches{{.first = 0, .end = 2}, {.first = 0, .end = 2}, {.first = 2, .end = 3}}));
  EXPECT_EQ(cut_for_kernels(std::vector{kHalf, kHalf + 1, kHalf - 1}),
            (Batches{{.first = 0, .end = 1}, {.first = 1, .end = 3}, {.first = 1, .end = 3}}));
}

TEST(TensorBatches, what_is_larger_than_a_batch_is_one) {
  const std::vector<std::size_t> elements{~std::size_t{0}, kKernelElements + 1, 0, 5};
  EXPECT_EQ(cut_for_kernels(elements),
            (Batches{{.first = 0, .end = 1},
                     {.first = 1, .end = 3},
                     {.first = 1, .end = 3},
                     {.first = 3, .end = 4}}));
}

TEST(TensorBatches, a_batch_ends_before_it_has_too_many_tensors) {
  EXPECT_EQ(cut_for_kernels(std::vector<std::size_t>(5, 1), 2),
            (Batches{{.first = 0, .end = 2},
                     {.first = 0, .end = 2},
                     {.first = 2, .end = 4},
                     {.first = 2, .end = 4},
                     {.first = 4, .end = 5}}));
}

TEST(TensorBatches, an_exchange_ends_with_the_tensor_that_fills_it) {
  constexpr std::size_t kFull = kExchangeElements;
  EXPECT_EQ(cut_for_exchange({}), Batches());
  EXPECT_EQ(cut_for_exchange(std::vector<std::size_t>(1000, 1000)),
            Batches({{.first = 0, .end = 1000}}));
  EXPECT_EQ(cut_for_exchange(std::vector{kFull, std::size_t{1}, std::size_t{0}}),
            (Batches{{.first = 0, .end = 1}, {.first = 1, .end = 3}}));
  EXPECT_EQ(
      cut_for_exchange(std::vector{kFull - 1, std::size_t{1}, std::size_t{5}, ~std::size_t{0}}),
      (Batches{{.first = 0, .end = 2}, {.first = 2, .end = 4}}));
}

}  // namespace
}  // namespace lightcc::tensor_batches_test
