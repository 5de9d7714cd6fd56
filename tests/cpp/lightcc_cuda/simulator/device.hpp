// The names of lightcc_cuda/kernels/portable.hpp for the simulator. Included by that file alone.
#pragma once

#include <cstddef>

/// The kernels are many and each test uses some.
#define LIGHTCC_DEVICE [[maybe_unused]] static inline
#define LIGHTCC_DEVICE_MEMBER inline
#define LIGHTCC_KERNEL(threads, blocks) extern "C" void
#define LIGHTCC_UNROLL
#define LIGHTCC_NO_UNROLL
#define LIGHTCC_SHARED(type, name, count) \
  static const char name##_site = 0;      \
  type* const name = static_cast<type*>(  \
      ::lightcc::cuda::simulator::shared_memory(&name##_site, sizeof(type) * (count)))

namespace lightcc::cuda {
namespace simulator {

/// Who the running CUDA thread is.
struct ThreadIndex {
  u32 thread = 0;
  u32 block = 0;
  u32 block_threads = 0;
  u32 grid_blocks = 0;
};

const ThreadIndex& current_thread();
/// Fibers of the block meet, or those of the warp.
void meet_block();
u32 vote(bool yes);
u32 read_lane_across(u32 value, u32 distance);
/// The block's memory for one declaration. New for each block, and filled with 0xCD.
void* shared_memory(const void* site, std::size_t bytes);
/// Lets others run. A block that spins for ever is an error of the launch.
void spin();

}  // namespace simulator

LIGHTCC_DEVICE u32 thread_index() {
  return simulator::current_thread().thread;
}
LIGHTCC_DEVICE u32 block_index() {
  return simulator::current_thread().block;
}
LIGHTCC_DEVICE u32 block_threads() {
  return simulator::current_thread().block_threads;
}
LIGHTCC_DEVICE u32 grid_blocks() {
  return simulator::current_thread().grid_blocks;
}
LIGHTCC_DEVICE void sync_block() {
  simulator::meet_block();
}
LIGHTCC_DEVICE u32 vote(bool yes) {
  return simulator::vote(yes);
}
LIGHTCC_DEVICE u32 read_lane_across(u32 value, u32 distance) {
  return simulator::read_lane_across(value, distance);
}
LIGHTCC_DEVICE u32 atomic_add(u32* to, u32 value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
LIGHTCC_DEVICE u32 atomic_or(u32* to, u32 value) {
  return __atomic_fetch_or(to, value, __ATOMIC_RELAXED);
}
LIGHTCC_DEVICE void publish(u64* to, u64 value) {
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
LIGHTCC_DEVICE u64 observe(const u64* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}
LIGHTCC_DEVICE void spin() {
  simulator::spin();
}
template <typename T>
LIGHTCC_DEVICE_MEMBER T load_input(const void* from) {
  struct [[gnu::may_alias, gnu::aligned(sizeof(T))]] Bytes {
    u8 at[sizeof(T)];
  };
  return __builtin_bit_cast(T, *static_cast<const Bytes*>(from));
}

}  // namespace lightcc::cuda
