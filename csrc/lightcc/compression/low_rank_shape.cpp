#include "lightcc/compression/low_rank_shape.hpp"

#include <algorithm>

namespace lightcc {

MatrixShape matrix_of(const std::vector<std::int64_t>& shape) {
  std::size_t elements = 1;
  for (const std::int64_t dimension : shape) {
    elements *= static_cast<std::size_t>(dimension);
  }
  MatrixShape best{1, elements};
  bool is_first = true;
  std::size_t rows = 1;
  for (std::size_t i = 0; elements > 0 && i + 1 < shape.size(); ++i) {
    rows *= static_cast<std::size_t>(shape[i]);
    const MatrixShape cut{rows, elements / rows};
    if (is_first || cut.rows + cut.cols < best.rows + best.cols) {
      best = cut;
    }
    is_first = false;
  }
  return best;
}

std::size_t low_rank_vectors(const MatrixShape& matrix, std::size_t rank) {
  return std::min({rank, matrix.rows, matrix.cols});
}

bool saves_as_low_rank(const MatrixShape& matrix,
                       DataType dtype,
                       std::size_t rank,
                       double min_rate) {
  const double lane_bytes = dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float);
  const double factors = static_cast<double>(matrix.rows) + static_cast<double>(matrix.cols);
  const double elements = static_cast<double>(matrix.rows) * static_cast<double>(matrix.cols);
  return static_cast<double>(rank) * factors * lane_bytes * min_rate <
         elements * static_cast<double>(element_size(dtype));
}

}  // namespace lightcc
