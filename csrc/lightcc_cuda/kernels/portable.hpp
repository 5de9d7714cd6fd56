// What a kernel may use, under names of our own, for two compilers: clang, which makes PTX from it
// without any CUDA toolkit, and the C++ compiler of the tests, whose simulator runs it on the CPU
// (tests/cpp/lightcc_cuda/simulator).
//
// Rules that keep both true:
// - All 32 lanes of a warp reach each vote and each read_lane_across(). Blocks have whole warps.
// - Only sync_block() orders memory: neither votes do, nor publish() with observe().
// - load_input() reads what no kernel of the launch writes.
// - Blocks wait for earlier blocks alone, in the order in which a counter hands out their numbers;
//   block_index() says nothing about who runs.
// - No arithmetic is contracted; division, square roots and conversions are IEEE's.
#pragma once

#include "lightcc_cuda/kernels/indices.hpp"

#if defined(LIGHTCC_CUDA_SIMULATOR)
#include "lightcc_cuda/simulator/device.hpp"
#else

#define LIGHTCC_DEVICE static __attribute__((device, always_inline)) inline
/// A member function, or a function template.
#define LIGHTCC_DEVICE_MEMBER __attribute__((device, always_inline)) inline
/// LIGHTCC_KERNEL(threads of a block, blocks that a multiprocessor is to hold at once) name(...).
#define LIGHTCC_KERNEL(threads, blocks) \
  extern "C" __attribute__((global)) void __attribute__((launch_bounds(threads, blocks)))
/// Before a loop over an array that is to stay in registers.
#define LIGHTCC_UNROLL _Pragma("unroll")
/// Before a loop whose copies would take too many registers.
#define LIGHTCC_NO_UNROLL _Pragma("nounroll")
#define LIGHTCC_SHARED(type, name, count) __attribute__((shared)) type name[count]

namespace lightcc::cuda {

LIGHTCC_DEVICE u32 thread_index() {
  return static_cast<u32>(__nvvm_read_ptx_sreg_tid_x());
}
LIGHTCC_DEVICE u32 block_index() {
  return static_cast<u32>(__nvvm_read_ptx_sreg_ctaid_x());
}
LIGHTCC_DEVICE u32 block_threads() {
  return static_cast<u32>(__nvvm_read_ptx_sreg_ntid_x());
}
LIGHTCC_DEVICE u32 grid_blocks() {
  return static_cast<u32>(__nvvm_read_ptx_sreg_nctaid_x());
}

/// All threads of the block wait for one another, and see what the others wrote before.
LIGHTCC_DEVICE void sync_block() {
  __syncthreads();
}
/// Bit i: what lane i says.
LIGHTCC_DEVICE u32 vote(bool yes) {
  return static_cast<u32>(__nvvm_vote_ballot_sync(~0U, yes));
}
/// `value` of the lane whose number differs in the bits of `distance`.
LIGHTCC_DEVICE u32 read_lane_across(u32 value, u32 distance) {
  return static_cast<u32>(
      __nvvm_shfl_sync_bfly_i32(~0U, static_cast<int>(value), static_cast<int>(distance), 31));
}

LIGHTCC_DEVICE u32 atomic_add(u32* to, u32 value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
LIGHTCC_DEVICE u32 atomic_or(u32* to, u32 value) {
  return __atomic_fetch_or(to, value, __ATOMIC_RELAXED);
}
/// Passes one word to the threads of any block that observe() it, and no other memory.
LIGHTCC_DEVICE void publish(u64* to, u64 value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(to), "l"(value) : "memory");
}
LIGHTCC_DEVICE u64 observe(const u64* from) {
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
/// In a loop around observe().
LIGHTCC_DEVICE void spin() {}

/// Reads an aligned `T` in global memory; no kernel of the launch writes there.
template <typename T>
LIGHTCC_DEVICE_MEMBER T load_input(const void* from) {
  using Two = u32 __attribute__((ext_vector_type(2)));
  using Four = u32 __attribute__((ext_vector_type(4)));
  if constexpr (sizeof(T) == sizeof(Four)) {
    return __builtin_bit_cast(T, __nvvm_ldg_ui4(static_cast<const Four*>(from)));
  } else if constexpr (sizeof(T) == sizeof(Two)) {
    return __builtin_bit_cast(T, __nvvm_ldg_ui2(static_cast<const Two*>(from)));
  } else if constexpr (sizeof(T) == sizeof(u32)) {
    return __builtin_bit_cast(T, __nvvm_ldg_ui(static_cast<const u32*>(from)));
  } else if constexpr (sizeof(T) == sizeof(u16)) {
    return __builtin_bit_cast(T, __nvvm_ldg_us(static_cast<const u16*>(from)));
  } else {
    return __builtin_bit_cast(T, __nvvm_ldg_uc(static_cast<const u8*>(from)));
  }
}

}  // namespace lightcc::cuda
#endif

namespace lightcc::cuda {

/// Bits that are set.
LIGHTCC_DEVICE u32 count_bits(u32 bits) {
  return static_cast<u32>(__builtin_popcount(bits));
}

}  // namespace lightcc::cuda
