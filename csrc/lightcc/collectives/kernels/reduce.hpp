// The arithmetic of reductions, chosen at run time for the machine: AVX-512, AVX2 or plain C++, all
// with the same bits (no contraction, no fast-math, no flush-to-zero).
//
// What the operators mean, at every level:
// - Floating point: IEEE arithmetic in the default mode, whatever mode the calling thread is in. A
//   NaN result has one representation (positive, quiet, empty payload), because which operand's
//   payload survives is up to compiler and machine.
// - Min and max of floating point: the first operand if it is less (greater) or a NaN, else the
//   second. So a NaN wins, as in numpy.minimum, and of 0.0 and -0.0 the later one does.
// - Integers: sum and product wrap around. A factor multiplies in float64; the product is truncated
//   towards zero and saturates at the ends of the type (NaN becomes 0).
// - Bool: nonzero is true; min and product are "and", max is "or", the result is 0 or 1. Factors do
//   not apply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce_job.hpp"

namespace lightcc {

enum class SimdLevel : std::uint8_t { kPlain = 0, kAvx2 = 1, kAvx512 = 2 };

/// The best level that this CPU and operating system support.
LIGHTCC_EXPORT SimdLevel detect_simd_level();
/// "plain", "avx2", "avx512".
LIGHTCC_EXPORT const char* simd_level_name(SimdLevel level);

/// out[i] = out2[i] = postscale * (x_0[i] op x_1[i] op ...), x_k scaled where asked, in the order
/// of `sources`, float16 and bfloat16 in float32 and rounded once (to nearest even).
///
/// `out` may be the same memory as one source, exactly (not shifted); `out2` may be null and does
/// not overlap anything. At least one source. Pointers need only the alignment of the element. `op`
/// is one of kSum, kMin, kMax and kProduct, and defined on the type. A level above the machine's
/// runs as the machine's best. hot: no allocation, no lock.
void reduce(std::span<const ReduceSource> sources,
            std::byte* out,
            std::byte* out2,
            std::size_t count,
            const Reduction& reduction,
            SimdLevel level);

}  // namespace lightcc
