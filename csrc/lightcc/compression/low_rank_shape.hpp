// Which matrix a tensor is to low-rank compression, and whether that is worth it: pure functions of
// what all ranks agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lightcc/base/types.hpp"

namespace lightcc {

struct MatrixShape {
  std::size_t rows = 0;
  std::size_t cols = 0;
  bool operator==(const MatrixShape&) const = default;
};

/// The tensor's dimensions, cut into two where the matrix has the fewest rows and columns together,
/// of equal cuts the first. That is (first, all others) for weights of linear layers and for
/// kernels of convolutions in torch's order, (all others, last) for those in TensorFlow's order. Of
/// fewer than two dimensions: one row.
MatrixShape matrix_of(const std::vector<std::int64_t>& shape);

/// How many vectors the factors have: `rank`, or all that the matrix can have.
std::size_t low_rank_vectors(const MatrixShape& matrix, std::size_t rank);

/// Whether the factors of `rank` have fewer bytes than the tensor, even times `min_rate`. Their
/// elements have 4 bytes, those of float64 8.
bool saves_as_low_rank(const MatrixShape& matrix,
                       DataType dtype,
                       std::size_t rank,
                       double min_rate);

}  // namespace lightcc
