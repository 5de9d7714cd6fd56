// The element types of kernels: how they are stored (Wire), and how they become the float32 lanes
// in which all is computed. They mean what collectives/kernels/reduce.hpp says.
#pragma once

#include "lightcc/base/half.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/portable.hpp"

namespace lightcc::cuda {

/// The one NaN that results have.
LIGHTCC_DEVICE float one_nan(float x) {
  return x == x ? x : __builtin_bit_cast(float, 0x7fc00000U);
}

struct Float32 {
  using Wire = float;
  static constexpr ElementType kType = ElementType::kFloat32;
  static constexpr bool kRounds = false;
  LIGHTCC_DEVICE_MEMBER static float decode(Wire wire) { return wire; }
};

template <ElementType Type, u16 Infinity, auto Decode, auto Encode>
struct HalfElement {
  using Wire = u16;
  static constexpr ElementType kType = Type;
  static constexpr bool kRounds = true;
  static constexpr Wire kInfinity = Infinity;
  LIGHTCC_DEVICE_MEMBER static float decode(Wire wire) { return Decode(wire); }
  LIGHTCC_DEVICE_MEMBER static Wire encode(float lane) { return Encode(one_nan(lane)); }
};
struct Float16 : HalfElement<ElementType::kFloat16, 0x7c00, half_to_float, float_to_half> {};
struct Bfloat16
    : HalfElement<ElementType::kBfloat16, 0x7f80, bfloat16_to_float, float_to_bfloat16> {};

// ---- Memory.

/// An element of an input, at any address: GPUs read and write aligned ones alone.
template <typename T>
LIGHTCC_DEVICE_MEMBER T load_any(const u8* from) {
  if (is_aligned(reinterpret_cast<u64>(from), sizeof(T))) {
    return load_input<T>(from);
  }
  u32 bits = 0;
  LIGHTCC_NO_UNROLL
  for (u32 i = 0; i < sizeof(T); ++i) {
    bits |= u32{load_input<u8>(from + i)} << 8 * i;
  }
  if constexpr (sizeof(T) == sizeof(u32)) {
    return __builtin_bit_cast(T, bits);
  } else {
    return static_cast<T>(bits);
  }
}

template <typename T>
LIGHTCC_DEVICE_MEMBER void store_any(u8* to, T value) {
  using Aligned [[gnu::may_alias]] = T;
  if (is_aligned(reinterpret_cast<u64>(to), sizeof(T))) {
    *reinterpret_cast<Aligned*>(to) = value;
    return;
  }
  u32 bits = 0;
  if constexpr (sizeof(T) == sizeof(u32)) {
    bits = __builtin_bit_cast(u32, value);
  } else {
    bits = value;
  }
  LIGHTCC_NO_UNROLL
  for (u32 i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<u8>(bits >> 8 * i);
  }
}

/// N neighbours of 8 or 16 bytes, whose address is aligned to all of them: one access.
template <typename T, u32 N>
struct Chunk {
  T at[N];
  static constexpr u32 kBytes = N * sizeof(T);
  using Words [[gnu::vector_size(kBytes), gnu::may_alias]] = u32;

  LIGHTCC_DEVICE_MEMBER static Chunk load(const u8* from) { return load_input<Chunk>(from); }
  LIGHTCC_DEVICE_MEMBER void store(u8* to) const {
    *reinterpret_cast<Words*>(to) = __builtin_bit_cast(Words, *this);
  }
};

/// The largest access.
inline constexpr u32 kVectorBytes = 16;

// ---- Types that are known at run time alone, for what is seldom or little.

LIGHTCC_DEVICE float decode_half(ElementType type, u16 wire) {
  return type == ElementType::kFloat16 ? half_to_float(wire) : bfloat16_to_float(wire);
}

/// Element `i` of an array at any address.
LIGHTCC_DEVICE float load_lane(ElementType type, const u8* array, u64 i) {
  return type == ElementType::kFloat32 ? load_any<float>(array + i * sizeof(float))
                                       : decode_half(type, load_any<u16>(array + i * sizeof(u16)));
}
LIGHTCC_DEVICE void store_lane(ElementType type, u8* array, u64 i, float lane) {
  const float x = one_nan(lane);
  if (type == ElementType::kFloat32) {
    store_any(array + i * sizeof(float), x);
  } else {
    store_any(array + i * sizeof(u16),
              type == ElementType::kFloat16 ? float_to_half(x) : float_to_bfloat16(x));
  }
}

}  // namespace lightcc::cuda
