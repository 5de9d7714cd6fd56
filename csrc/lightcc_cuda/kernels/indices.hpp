// Integers by their bits, the same in kernels and in what launches them, and where things lie, as
// plain functions. All elements are counted in 64 bits: buckets may have more than 2^31 of them.
#pragma once

namespace lightcc::cuda {

using u8 = __UINT8_TYPE__;
using u16 = __UINT16_TYPE__;
using u32 = __UINT32_TYPE__;
using u64 = __UINT64_TYPE__;
using i16 = __INT16_TYPE__;
static_assert(sizeof(void*) == 8 && sizeof(u64) == 8 && sizeof(u32) == 4);

inline constexpr u32 kWarpLanes = 32;

/// What kernels compute with, as DataType numbers it.
enum class ElementType : u32 { kFloat16 = 6, kFloat32 = 7, kBfloat16 = 10 };

template <typename T>
constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

/// Tiles of `tile` elements that `elements` take.
constexpr u64 tiles_of(u64 elements, u64 tile) {
  return elements / tile + (elements % tile != 0 ? 1 : 0);
}

/// The last of `count` rows whose `Begin`, a member, is not above `value`. Rows ascend, and the
/// first one's is not above it.
template <auto Begin, typename Row>
constexpr u32 last_row(const Row* rows, u32 count, u64 value) {
  u32 low = 0;
  u32 high = count;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (rows[middle].*Begin <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename Row>
constexpr u32 row_at(const Row* rows, u32 count, u64 value) {
  return last_row<&Row::first>(rows, count, value);
}

/// The first of `count` ascending offsets that is not below `value`, or `count`.
template <typename Offset>
constexpr u32 first_from(const Offset* offsets, u32 count, u64 value) {
  u32 low = 0;
  u32 high = count;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (offsets[middle] < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

constexpr bool is_aligned(u64 address, u64 bytes) {
  return address % bytes == 0;
}

}  // namespace lightcc::cuda

/// X(kernel_f32, ..., type) for each type of elements (elements.hpp).
#define LIGHTCC_OF_ELEMENTS(X, kernel, function) \
  X(kernel##_f32, function, Float32)             \
  X(kernel##_f16, function, Float16)             \
  X(kernel##_bf16, function, Bfloat16)
