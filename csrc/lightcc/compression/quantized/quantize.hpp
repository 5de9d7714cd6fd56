// The wire format of quantised elements, and the arithmetic of a quantised all-reduce.
//
// A part of a shard is cut into blocks of 128 elements, the last one maybe shorter. It travels as
// the scales of all blocks, 2 bytes each, and then their codes: a byte for each element, or half a
// byte. Both ends know how many elements a part has, so nothing else travels. A part whose values
// are not all finite has NaN for every scale, and the step is skipped on all ranks. Byte
// table: docs/inside/wire-format.md; arithmetic:
// kernels/quantize_blocks.hpp.
//
// What codes do not say is kept: sent + left is the sum, exactly. Codes come from peers, so
// check_quantized() comes before anything else looks at them.
//
// Thread: any, IEEE mode is set for each call. Blocks: no. All SIMD levels have the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/kernels/quantize_blocks_job.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {

/// How elements are written. Both ends know it.
struct QuantizedFormat {
  DataType dtype = DataType::kFloat32;        ///< Floating point.
  Compressor compressor = Compressor::kInt8;  ///< One that is quantised.
  /// Bits of an element: 8 or 4.
  unsigned bits() const { return bits_of(compressor); }
  bool operator==(const QuantizedFormat&) const = default;
};

/// 2 for each begun block of 128 elements; and 16 times `bits` for each whole block, and one for
/// each element of the last, at most as many.
std::size_t quantized_bytes(std::size_t elements, unsigned bits);

/// Part `j` of `n` of a shard, cut between blocks: the sizes differ by at most 128 elements (before
/// the last part is clipped to the shard).
ShardRange quantized_part(std::size_t numel, std::size_t n, std::size_t j);

/// Writes input + residual to `out`, which has quantized_bytes(), and what that does not say to
/// `next`. `input`: elements of the dtype, any alignment, null: zeros. `residual` and `next`: lanes
/// (float32, of float64 float64); both null: there is no residual. Returns false where a sum is not
/// finite: `out` says so then, and what `next` has means nothing.
bool quantize(const std::byte* input,
              const std::byte* residual,
              std::byte* next,
              std::size_t elements,
              const QuantizedFormat& format,
              std::span<std::byte> out,
              SimdLevel level);

/// Checks a part of `elements` elements; returns whether it is not finite. Errors: kPeerFailed:
/// another length, or a scale below zero.
Result<bool> check_quantized(std::span<const std::byte> part,
                             std::size_t elements,
                             const QuantizedFormat& format);

/// out = factor * (x_0 + x_1 + ...) over the parts in their order, in lanes, rounded to the dtype
/// once. Parts were checked, are of as many elements and all are finite.
void dequantize(std::span<const std::span<const std::byte>> parts,
                std::size_t elements,
                const QuantizedFormat& format,
                double factor,
                std::byte* out,
                SimdLevel level);

/// out = factor * (own + x_0 + x_1 + ...) likewise. `own`: elements of the dtype, any alignment,
/// null: zeros.
void dequantize_onto(const std::byte* own,
                     std::span<const std::span<const std::byte>> parts,
                     std::size_t elements,
                     const QuantizedFormat& format,
                     double factor,
                     std::byte* out,
                     SimdLevel level);

/// The same where parts are elements of the dtype, which were not quantised.
void add_exact(const std::byte* own,
               std::span<const std::span<const std::byte>> parts,
               std::size_t elements,
               DataType dtype,
               double factor,
               std::byte* out);

/// next = input + residual in lanes, finite or not: what a part is that is not quantised yet. The
/// arguments are those of quantize().
void accumulate(const std::byte* input,
                const std::byte* residual,
                std::byte* next,
                std::size_t elements,
                DataType dtype);

/// Writes own + x_0 + x_1 + ... to `out`, quantised, and leaves in `own` (lanes) what that does not
/// say. Returns false where a sum is not finite, as quantize().
bool quantize_sum(std::span<const std::span<const std::byte>> parts,
                  std::size_t elements,
                  const QuantizedFormat& format,
                  std::byte* own,
                  std::span<std::byte> out,
                  SimdLevel level);

/// Writes a part that is not finite.
void write_non_finite(std::size_t elements, unsigned bits, std::span<std::byte> out);

}  // namespace lightcc
