// The element types of kernels: how they are stored (Wire) and what they are computed in (Lane).
// They mean what collectives/kernels/reduce.hpp says.
#pragma once

#include "lightcc/base/half.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/portable.hpp"

namespace lightcc::cuda {

/// The one NaN that results have.
LIGHTCC_DEVICE float one_nan(float x) {
  return x == x ? x : __builtin_bit_cast(float, 0x7fc00000U);
}
LIGHTCC_DEVICE double one_nan(double x) {
  return x == x ? x : __builtin_bit_cast(double, u64{0x7ff8000000000000});
}

template <typename T>
struct PlainElement {
  using Wire = T;
  using Lane = T;
  static constexpr bool kRounds = false;
  LIGHTCC_DEVICE_MEMBER static Lane decode(Wire wire) { return wire; }
  LIGHTCC_DEVICE_MEMBER static Wire encode(Lane lane) { return one_nan(lane); }
};
struct Float32 : PlainElement<float> {};
struct Float64 : PlainElement<double> {};

template <u16 Infinity, auto Decode, auto Encode>
struct HalfElement {
  using Wire = u16;
  using Lane = float;
  static constexpr bool kRounds = true;
  static constexpr Wire kInfinity = Infinity;
  LIGHTCC_DEVICE_MEMBER static Lane decode(Wire wire) { return Decode(wire); }
  LIGHTCC_DEVICE_MEMBER static Wire encode(Lane lane) { return Encode(one_nan(lane)); }
};
struct Float16 : HalfElement<0x7c00, half_to_float, float_to_half> {};
struct Bfloat16 : HalfElement<0x7f80, bfloat16_to_float, float_to_bfloat16> {};

// ---- Memory.

/// An element of an input, at any address: GPUs read and write aligned ones alone.
template <typename T>
LIGHTCC_DEVICE_MEMBER T load_any(const u8* from) {
  if (is_aligned(reinterpret_cast<u64>(from), sizeof(T))) {
    return load_input<T>(from);
  }
  struct {
    u8 at[sizeof(T)];
  } bytes;
  LIGHTCC_UNROLL
  for (u32 i = 0; i < sizeof(T); ++i) {
    bytes.at[i] = load_input<u8>(from + i);
  }
  return __builtin_bit_cast(T, bytes);
}

template <typename T>
LIGHTCC_DEVICE_MEMBER void store_any(u8* to, T value) {
  using Aligned [[gnu::may_alias]] = T;
  if (is_aligned(reinterpret_cast<u64>(to), sizeof(T))) {
    *reinterpret_cast<Aligned*>(to) = value;
    return;
  }
  struct Bytes {
    u8 at[sizeof(T)];
  };
  const auto bytes = __builtin_bit_cast(Bytes, value);
  LIGHTCC_UNROLL
  for (u32 i = 0; i < sizeof(T); ++i) {
    to[i] = bytes.at[i];
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

}  // namespace lightcc::cuda
