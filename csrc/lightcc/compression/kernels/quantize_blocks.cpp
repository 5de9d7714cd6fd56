#include "lightcc/compression/kernels/quantize_blocks.hpp"

#include <algorithm>

namespace lightcc {

QuantizeKernel quantize_kernel(SimdLevel level) {
#if defined(__x86_64__)
  switch (std::min(level, detect_simd_level())) {
    case SimdLevel::kAvx512:
      return detail::quantize_blocks_avx512;
    case SimdLevel::kAvx2:
      return detail::quantize_blocks_avx2;
    case SimdLevel::kPlain:
      break;
  }
#else
  static_cast<void>(level);
#endif
  return detail::quantize_blocks_plain;
}

DequantizeKernel dequantize_kernel(SimdLevel level) {
#if defined(__x86_64__)
  switch (std::min(level, detect_simd_level())) {
    case SimdLevel::kAvx512:
      return detail::dequantize_blocks_avx512;
    case SimdLevel::kAvx2:
      return detail::dequantize_blocks_avx2;
    case SimdLevel::kPlain:
      break;
  }
#else
  static_cast<void>(level);
#endif
  return detail::dequantize_blocks_plain;
}

}  // namespace lightcc
