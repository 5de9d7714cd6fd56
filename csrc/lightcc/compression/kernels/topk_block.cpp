#include "lightcc/compression/kernels/topk_block.hpp"

#include <algorithm>

namespace lightcc {

TopkBlockKernel topk_block_kernel(SimdLevel level) {
#if defined(__x86_64__)
  switch (std::min(level, detect_simd_level())) {
    case SimdLevel::kAvx512:
      return detail::topk_block_avx512;
    case SimdLevel::kAvx2:
      return detail::topk_block_avx2;
    case SimdLevel::kPlain:
      break;
  }
#else
  static_cast<void>(level);
#endif
  return detail::topk_block_plain;
}

}  // namespace lightcc
