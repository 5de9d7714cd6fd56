// Quantisation with AVX2. Compiled with flags of its own: see quantize_blocks_job.hpp for what must
// not be done here.
#if defined(__x86_64__)

#include <cstddef>  // IWYU pragma: keep (for the loops that are included)
#include <cstdint>  // IWYU pragma: keep (likewise)

#include "lightcc/compression/kernels/quantize_blocks_job.hpp"

namespace lightcc {
namespace {

#include "lightcc/compression/kernels/quantize_blocks_body.inl"

}  // namespace

bool detail::quantize_blocks_avx2(const QuantizeJob& job) {
  return job.wide ? quantize_all<double>(job) : quantize_all<float>(job);
}

void detail::dequantize_blocks_avx2(const DequantizeJob& job) {
  job.wide ? dequantize_all<double>(job) : dequantize_all<float>(job);
}

}  // namespace lightcc

#endif
