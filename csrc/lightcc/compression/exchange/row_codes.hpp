// The row of a tensor that one rank gives, or gets, as it travels compressed: piece after piece.
//
// A row is cut into segments, which travel in 8 or 4 bits an element or as they are, and long
// segments into pieces. Blocks of 128 elements begin anew with each segment, and pieces end between
// blocks. So no block has elements of two segments, and the bits depend on the segments alone.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/quantized/quantize.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {

struct RowPiece {
  ShardRange range;   ///< Elements of the row.
  unsigned bits = 0;  ///< An element takes so many; 0: as it is.

  std::size_t elements() const { return range.size_elems(); }
  QuantizedFormat format(DataType dtype) const {
    return {.dtype = dtype, .compressor = compressor_of(bits)};
  }
};

/// How a row of `elements` elements is cut. `spec` is quantised, and its segments, if it has any,
/// are the row.
std::vector<RowPiece> cut_row(std::size_t elements, const CompressionSpec& spec);

std::size_t piece_bytes(const RowPiece& piece, DataType dtype);
std::size_t pieces_bytes(std::span<const RowPiece> pieces, DataType dtype);

/// Writes a piece of a row whose elements are at `in` (null: zeros) to `out`. Returns whether it is
/// finite. What rounding takes away becomes the part `kept` of `residual`; null: it is dropped.
bool encode_piece(const std::byte* in,
                  const RowPiece& piece,
                  DataType dtype,
                  HostResidual* residual,
                  const ShardRange& kept,
                  std::span<std::byte> out);

/// Writes pieces that say that the row is not finite.
void write_non_finite_pieces(std::span<const RowPiece> pieces,
                             DataType dtype,
                             std::span<std::byte> out);

/// Checks what a peer sent of `pieces`; returns whether it says that the row is finite. Errors: of
/// check_quantized().
Result<bool> check_pieces(std::span<const RowPiece> pieces,
                          DataType dtype,
                          std::span<const std::byte> codes);

/// Makes all elements NaN.
void fill_with_nan(std::byte* out, std::size_t elements, DataType dtype);

}  // namespace lightcc
