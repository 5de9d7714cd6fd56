// Integers by their bits, the same in kernels and in what launches them.
#pragma once

namespace lightcc::cuda {

using u8 = __UINT8_TYPE__;
using u16 = __UINT16_TYPE__;
using u32 = __UINT32_TYPE__;
using u64 = __UINT64_TYPE__;
using i8 = __INT8_TYPE__;
using i16 = __INT16_TYPE__;
using i32 = __INT32_TYPE__;
using i64 = __INT64_TYPE__;
static_assert(sizeof(void*) == 8 && sizeof(u64) == 8 && sizeof(u32) == 4);

inline constexpr u32 kWarpLanes = 32;

}  // namespace lightcc::cuda
