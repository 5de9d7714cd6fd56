#include "lightcc/compression/exchange/row_codes.hpp"

#include <algorithm>

#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/topk/finite.hpp"

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

bool encode_piece(const std::byte* in,
                  const RowPiece& piece,
                  DataType dtype,
                  HostResidual* residual,
                  const ShardRange& kept,
                  std::span<std::byte> out) {
  if (piece.bits > 0) {
    const QuantizedFormat format = piece.format(dtype);
    return residual != nullptr
               ? residual->quantize_range(in, kept, format.compressor, out)
               : quantize(in, nullptr, nullptr, piece.elements(), format, out, detect_simd_level());
  }
  if (residual != nullptr) {
    residual->skip_range(kept);
  }
  if (in == nullptr) {
    std::ranges::fill(out, std::byte{0});
    return true;
  }
  std::copy_n(in, out.size(), out.data());
  return is_all_finite(in, piece.elements(), dtype);
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
      finite = is_all_finite(part.data(), piece.elements(), dtype) && finite;
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
