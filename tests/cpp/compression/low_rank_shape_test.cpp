// Which matrix a tensor is, and whether low rank pays.
#include "lightcc/compression/low_rank_shape.hpp"

#include <gtest/gtest.h>

namespace lightcc::low_rank_shape_test {
namespace {

TEST(LowRankShape, a_matrix_is_itself) {
  EXPECT_EQ(matrix_of({30, 7}), (MatrixShape{30, 7}));
  EXPECT_EQ(matrix_of({1, 7}), (MatrixShape{1, 7}));
  EXPECT_EQ(matrix_of({7, 1}), (MatrixShape{7, 1}));
}

TEST(LowRankShape, kernels_of_convolutions_are_cut_at_the_channels) {
  EXPECT_EQ(matrix_of({64, 32, 3, 3}), (MatrixShape{64, 288}));  // torch: out, in, height, width.
  EXPECT_EQ(matrix_of({3, 3, 32, 64}), (MatrixShape{288, 64}));  // TensorFlow.
}

TEST(LowRankShape, of_equal_cuts_the_first_is_taken) {
  EXPECT_EQ(matrix_of({4, 1, 9}), (MatrixShape{4, 9}));
  EXPECT_EQ(matrix_of({2, 3, 2}), (MatrixShape{2, 6}));
}

TEST(LowRankShape, what_has_no_two_dimensions_is_one_row) {
  EXPECT_EQ(matrix_of({9}), (MatrixShape{1, 9}));
  EXPECT_EQ(matrix_of({}), (MatrixShape{1, 1}));
  EXPECT_EQ(matrix_of({0, 4}), (MatrixShape{1, 0}));
}

TEST(LowRankShape, it_pays_where_factors_are_smaller_by_the_rate) {
  // 100 x 100: factors of rank 4 have 800 elements, 12.5 times fewer.
  const MatrixShape matrix{100, 100};
  EXPECT_TRUE(saves_as_low_rank(matrix, DataType::kFloat32, 4, 12.4));
  EXPECT_FALSE(saves_as_low_rank(matrix, DataType::kFloat32, 4, 12.5));
  EXPECT_TRUE(saves_as_low_rank(matrix, DataType::kFloat64, 4, 12.4));
}

TEST(LowRankShape, factors_of_float16_are_wider_than_it) {
  const MatrixShape matrix{100, 100};
  EXPECT_TRUE(saves_as_low_rank(matrix, DataType::kFloat16, 4, 6.2));
  EXPECT_FALSE(saves_as_low_rank(matrix, DataType::kBfloat16, 4, 6.3));
}

TEST(LowRankShape, a_vector_never_pays) {
  EXPECT_FALSE(saves_as_low_rank(matrix_of({1 << 20}), DataType::kFloat32, 1, 1.0));
}

TEST(LowRankShape, a_small_matrix_has_no_more_vectors_than_rows_or_columns) {
  EXPECT_EQ(low_rank_vectors({3, 100}, 8), 3);
  EXPECT_EQ(low_rank_vectors({100, 2}, 8), 2);
  EXPECT_EQ(low_rank_vectors({100, 200}, 8), 8);
}

}  // namespace
}  // namespace lightcc::low_rank_shape_test
