#include "lightcc/compression/exchange/row_codes.hpp"

#include <algorithm>
#include <cmath>

#include "lightcc/compression/kernels/float_types.hpp"

namespace lightcc {
namespace {

/// A multiple of 128. Small enough that a row of some Mi elements has pieces to overlap.
constexpr std::size_t kPieceElements = std::size_t{1} << 18;

void cut_segment(std::size_t begin,
                 std::size_t elements,
                 unsigned bits,
                 std::vector<RowPiece>& pieces) {
  const std::size_t end = begin + elements;
  while (begin < end) {
    const std::size_t next = std::min(begin + kPieceElements, end);
    pieces.push_back({.range = {begin, next}, .bits = bits});
    begin = next;
  }
}

}  // namespace

std::vector<RowPiece> cut_row(std::size_t elements, const CompressionSpec& spec) {
  std::vector<RowPiece> pieces;
  if (spec.segments.empty()) {
    cut_segment(0, elements, bits_of(spec.compressor), pieces);
  }
  std::size_t begin = 0;
  for (const RowSegment& segment : spec.segments) {
    cut_segment(begin, segment.elements, segment.bits, pieces);
    begin += segment.elements;
  }
  return pieces;
}

std::size_t piece_bytes(const RowPiece& piece, DataType dtype) {
  return piece.bits == 0 ? piece.elements() * element_size(dtype)
                         : quantized_bytes(piece.elements(), piece.bits);
}

std::size_t pieces_bytes(std::span<const RowPiece> pieces, DataType dtype) {
  std::size_t bytes = 0;
  for (const RowPiece& piece : pieces) {
    bytes += piece_bytes(piece, dtype);
  }
  return bytes;
}

bool is_finite_anywhere(const std::byte* data, std::size_t elements, DataType dtype) {
  return detail::with_float_type(dtype, [&](auto type) {
    using Type = decltype(type);
    using Wire = Type::Wire;
    bool finite = true;
    for (std::size_t i = 0; i < elements; ++i) {
      finite =
          std::isfinite(Type::decode(detail::load_as<Wire>(data + i * sizeof(Wire)))) && finite;
    }
    return finite;
  });
}

void write_non_finite_pieces(std::span<const RowPiece> pieces,
                             DataType dtype,
                             std::span<std::byte> out) {
  for (const RowPiece& piece : pieces) {
    const auto to = out.first(piece_bytes(piece, dtype));
    if (piece.bits == 0) {
      fill_with_nan(to.data(), piece.elements(), dtype);
    } else {
      write_non_finite(piece.elements(), piece.bits, to);
    }
    out = out.subspan(to.size());
  }
}

Result<bool> check_pieces(std::span<const RowPiece> pieces,
                          DataType dtype,
                          std::span<const std::byte> codes) {
  bool finite = true;
  for (const RowPiece& piece : pieces) {
    const auto part = codes.first(piece_bytes(piece, dtype));
    if (piece.bits == 0) {
      finite = is_finite_anywhere(part.data(), piece.elements(), dtype) && finite;
    } else {
      LIGHTCC_ASSIGN_OR_RETURN(const bool non_finite,
                               check_quantized(part, piece.elements(), piece.format(dtype)));
      finite = finite && !non_finite;
    }
    codes = codes.subspan(part.size());
  }
  return finite;
}

void fill_with_nan(std::byte* out, std::size_t elements, DataType dtype) {
  detail::with_float_type(dtype, [&](auto type) {
    using Type = decltype(type);
    const auto nan = Type::encode(detail::one_nan<typename Type::Lane>());
    for (std::size_t i = 0; i < elements; ++i) {
      detail::store_as(out + i * sizeof(nan), nan);
    }
  });
}

}  // namespace lightcc
