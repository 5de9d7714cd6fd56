#include "lightcc/compression/kernels/low_rank_tile.hpp"

#include <algorithm>

namespace lightcc {

LowRankKernels low_rank_kernels(SimdLevel level) {
#if defined(__x86_64__)
  switch (std::min(level, detect_simd_level())) {
    case SimdLevel::kAvx512:
      return {detail::low_rank_project_avx512,
              detail::low_rank_collect_avx512,
              detail::low_rank_split_avx512};
    case SimdLevel::kAvx2:
      return {detail::low_rank_project_avx2,
              detail::low_rank_collect_avx2,
              detail::low_rank_split_avx2};
    case SimdLevel::kPlain:
      break;
  }
#else
  static_cast<void>(level);
#endif
  return {
      detail::low_rank_project_plain, detail::low_rank_collect_plain, detail::low_rank_split_plain};
}

}  // namespace lightcc
