// Quantisation without any instruction beyond the baseline: what other levels are held to.
#include <cstddef>  // IWYU pragma: keep (for the loops that are included)
#include <cstdint>  // IWYU pragma: keep (likewise)

#include "lightcc/compression/kernels/quantize_blocks_job.hpp"

namespace lightcc {
namespace {

#include "lightcc/compression/kernels/quantize_blocks_body.inl"

}  // namespace

bool detail::quantize_blocks_plain(const QuantizeJob& job) {
  return job.wide ? quantize_all<double>(job) : quantize_all<float>(job);
}

void detail::dequantize_blocks_plain(const DequantizeJob& job) {
  job.wide ? dequantize_all<double>(job) : dequantize_all<float>(job);
}

}  // namespace lightcc
