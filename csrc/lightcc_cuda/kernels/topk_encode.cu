// Values of a list as float16 with a power of two for each block of the wire format; what rounding
// takes away goes to the next residual. write_scaled() of compression/topk/topk_step.cpp.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

/// The exponent that brings `largest` to [2^14, 2^15], within the limits of
/// compression/kernels/float_types.hpp. Those of subnormal numbers are too low either way.
LIGHTCC_DEVICE int exponent_for(u32 largest) {
  if (largest == 0) {
    return 0;
  }
  const int exponent = static_cast<int>(largest >> kFractionBits) - kExponentBias - 14;
  return max_of(-125, min_of(exponent, 113));
}

/// A block of threads for each tile; the first of each block of the wire format has work.
LIGHTCC_KERNEL(kTopkThreads, 4) lightcc_topk_encode(const TopkArguments a) {
  constexpr float kHalfLimit = 32752.0F;
  LIGHTCC_SHARED(u32, largest, kTopkThreads);
  const TopkTensor& t = a.tensors[row_at(a.tensors, a.count, block_index())];
  const u64 tile = block_index() - t.first;
  const TopkProgress& progress = *t.progress;
  if (tile % kTopkTilesOfBlock != 0 || t.lanes == nullptr || progress.non_finite != 0) {
    return;
  }
  const u64 block = tile / kTopkTilesOfBlock;
  const u32 entries = t.counts[block];
  const u32 first = t.block_begins[block];
  const float* values = reinterpret_cast<const float*>(t.lanes) + first;
  u32 mine = 0;
  for (u32 i = thread_index(); i < entries; i += kTopkThreads) {
    mine = max_of(mine, key_of(values[i]));
  }
  largest[thread_index()] = mine;
  for (u32 half = kTopkThreads / 2; half > 0; half /= 2) {
    sync_block();
    if (thread_index() < half) {
      largest[thread_index()] = max_of(largest[thread_index()], largest[thread_index() + half]);
    }
  }
  sync_block();
  const int exponent = exponent_for(largest[0]);
  const float down = power_of_two(-exponent);
  const float up = power_of_two(exponent);
  float* residual =
      reinterpret_cast<float*>(t.residual[1 - progress.current]) + block * kTopkWireBlock;
  for (u32 i = thread_index(); i < entries; i += kTopkThreads) {
    const float scaled = max_of(-kHalfLimit, min_of(values[i] * down, kHalfLimit));
    const u16 half = float_to_half(scaled);
    reinterpret_cast<u16*>(t.values)[first + i] = half;
    residual[t.offsets[first + i]] = values[i] - half_to_float(half) * up;
  }
  if (thread_index() == 0) {
    t.exponents[block] = static_cast<i16>(exponent);
  }
}

}  // namespace lightcc::cuda
