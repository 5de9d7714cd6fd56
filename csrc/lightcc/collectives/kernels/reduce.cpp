// Chooses the SIMD level's code; the arithmetic is in reduce_body.inl.
#include "lightcc/collectives/kernels/reduce.hpp"

#include <algorithm>

#include "lightcc/base/cpu.hpp"
#include "lightcc/collectives/kernels/float_mode.hpp"

namespace lightcc {

SimdLevel detect_simd_level() {
  static const SimdLevel kLevel = [] {
    const CpuFeatures features = detect_cpu_features();
    if (features.avx512) {
      return SimdLevel::kAvx512;
    }
    return features.avx2 ? SimdLevel::kAvx2 : SimdLevel::kPlain;
  }();
  return kLevel;
}

const char* simd_level_name(SimdLevel level) {
  switch (level) {
    case SimdLevel::kPlain:
      return "plain";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

void reduce(std::span<const ReduceSource> sources,
            std::byte* out,
            std::byte* out2,
            std::size_t count,
            const Reduction& reduction,
            SimdLevel level) {
  if (sources.empty() || count == 0) {
    return;
  }
  const detail::ReduceJob job{.sources = sources.data(),
                              .num_sources = sources.size(),
                              .out = out,
                              .out2 = out2,
                              .count = count,
                              .dtype = reduction.dtype,
                              .op = reduction.op,
                              .prescale = reduction.prescale,
                              .postscale = reduction.postscale};
  const IeeeFloatMode mode;
#if defined(__x86_64__)
  switch (std::min(level, detect_simd_level())) {
    case SimdLevel::kAvx512:
      return detail::reduce_avx512(job);
    case SimdLevel::kAvx2:
      return detail::reduce_avx2(job);
    case SimdLevel::kPlain:
      break;
  }
#else
  static_cast<void>(level);
#endif
  detail::reduce_plain(job);
}

}  // namespace lightcc
