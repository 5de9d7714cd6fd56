// Whether values are numbers: is_all_finite() of compression/finite.hpp, any alignment.
#include "lightcc_cuda/kernels/elements.hpp"
#include "lightcc_cuda/kernels/finite.hpp"

namespace lightcc::cuda {

template <typename Bits>
LIGHTCC_DEVICE_MEMBER void find_non_finite(const FiniteArguments& a) {
  constexpr u32 kChunk = kVectorBytes / sizeof(Bits);
  const auto exponent = static_cast<Bits>(a.exponent);
  const u64 first = u64{block_index()} * block_threads() + thread_index();
  const u64 stride = u64{grid_blocks()} * block_threads();
  bool found = false;
  u64 done = 0;
  if (is_aligned(reinterpret_cast<u64>(a.data), kVectorBytes)) {
    const u64 chunks = a.count / kChunk;
    for (u64 i = first; i < chunks; i += stride) {
      const auto chunk = Chunk<Bits, kChunk>::load(a.data + i * kVectorBytes);
      LIGHTCC_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        found |= (chunk.at[j] & exponent) == exponent;
      }
    }
    done = chunks * kChunk;
  }
  for (u64 i = done + first; i < a.count; i += stride) {
    found |= (load_any<Bits>(a.data + i * sizeof(Bits)) & exponent) == exponent;
  }
  if (vote(found) != 0 && thread_index() % kWarpLanes == 0) {
    atomic_or(a.found, 1);
  }
}

#define LIGHTCC_DEFINE_FINITE(name, bits)                           \
  LIGHTCC_KERNEL(kFiniteThreads, 4) name(const FiniteArguments a) { \
    find_non_finite<bits>(a);                                       \
  }
LIGHTCC_FINITE_KERNELS(LIGHTCC_DEFINE_FINITE)

}  // namespace lightcc::cuda
