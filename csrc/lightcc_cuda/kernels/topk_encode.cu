// Values of a list as float16 with a power of two for each block of the wire format; what rounding
// takes away goes to the next residual. write_scaled() of compression/topk/topk_step.cpp.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

/// The exponent that brings `largest` to [2^14, 2^15], within the limits of
/// compression/kernels/float_types.hpp. Those of subnormal numbers are too low either way.
template <typename Lane>
LIGHTCC_DEVICE_MEMBER int exponent_for(typename KeyOf<Lane>::Type largest) {
  if (largest == 0) {
    return 0;
  }
  const int exponent =
      static_cast<int>(largest >> KeyOf<Lane>::kFractionBits) - KeyOf<Lane>::kBias - 14;
  constexpr bool kIsFloat = sizeof(Lane) == 4;
  return max_of(kIsFloat ? -125 : -1000, min_of(exponent, kIsFloat ? 113 : 1009));
}

/// A block of threads for each tile; the first of each block of the wire format has work.
template <typename Lane>
LIGHTCC_DEVICE_MEMBER void encode(const TopkArguments& a) {
  using Key = typename KeyOf<Lane>::Type;
  constexpr auto kHalfLimit = static_cast<Lane>(32752.0F);
  LIGHTCC_SHARED(Key, largest, kTopkThreads);
  const TopkTensor& t = a.tensors[row_at(a.tensors, a.count, block_index())];
  const u64 tile = block_index() - t.first;
  const TopkProgress& progress = *t.progress;
  if (tile % kTopkTilesOfBlock != 0 || t.lanes == nullptr || progress.non_finite != 0) {
    return;
  }
  const u64 block = tile / kTopkTilesOfBlock;
  const u32 entries = t.counts[block];
  const u32 first = t.block_begins[block];
  const Lane* values = reinterpret_cast<const Lane*>(t.lanes) + first;
  Key mine = 0;
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
  const int exponent = exponent_for<Lane>(largest[0]);
  const Lane down = power_of_two<Lane>(-exponent);
  const Lane up = power_of_two<Lane>(exponent);
  Lane* residual =
      reinterpret_cast<Lane*>(t.residual[1 - progress.current]) + block * kTopkWireBlock;
  for (u32 i = thread_index(); i < entries; i += kTopkThreads) {
    const Lane scaled = max_of<Lane>(-kHalfLimit, min_of<Lane>(values[i] * down, kHalfLimit));
    const u16 half = float_to_half(static_cast<float>(scaled));
    reinterpret_cast<u16*>(t.values)[first + i] = half;
    residual[t.offsets[first + i]] = values[i] - static_cast<Lane>(half_to_float(half)) * up;
  }
  if (thread_index() == 0) {
    t.exponents[block] = static_cast<i16>(exponent);
  }
}

#define LIGHTCC_DEFINE(name, function, type)                    \
  LIGHTCC_KERNEL(kTopkThreads, 4) name(const TopkArguments a) { \
    function<type>(a);                                          \
  }
LIGHTCC_TOPK_ENCODE_KERNELS(LIGHTCC_DEFINE)

}  // namespace lightcc::cuda
