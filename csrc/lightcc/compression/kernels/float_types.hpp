// The element types of compression: what they are computed in (Lane), how they are stored (Wire),
// and how one becomes the other.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lightcc/base/half.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc::detail {

template <typename T>
T load_as(const std::byte* from) {
  T value;
  // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): never after a parse error
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store_as(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

/// float32, float64: stored as computed.
template <typename T>
struct WideType {
  using Lane = T;
  using Wire = T;
  static constexpr bool kRounds = false;
  static Lane decode(Wire wire) { return wire; }
  static Wire encode(Lane lane) { return lane; }
  static Wire encode_saturating(Lane lane) { return lane; }
};

/// Computed in float32 and rounded. Saturating: what is finite stays finite.
template <float (*ToFloat)(std::uint16_t),
          std::uint16_t (*FromFloat)(float),
          std::uint16_t Infinity>
struct NarrowType {
  using Lane = float;
  using Wire = std::uint16_t;
  static constexpr bool kRounds = true;
  static Lane decode(Wire wire) { return ToFloat(wire); }
  static Wire encode(Lane lane) { return FromFloat(lane); }
  static Wire encode_saturating(Lane lane) {
    const Wire wire = FromFloat(lane);
    const bool overflowed = (wire & 0x7fffU) == Infinity && std::isfinite(lane);
    return overflowed ? static_cast<Wire>(wire - 1U) : wire;
  }
};

using Float16Type = NarrowType<half_to_float, float_to_half, 0x7c00>;
using Bfloat16Type = NarrowType<bfloat16_to_float, float_to_bfloat16, 0x7f80>;

/// Calls `function` with an object of the type that `dtype` names. float32 stands in for what is
/// not floating point; callers have checked.
template <typename Function>
decltype(auto) with_float_type(DataType dtype, const Function& function) {
  switch (dtype) {
    case DataType::kFloat16:
      return function(Float16Type());
    case DataType::kBfloat16:
      return function(Bfloat16Type());
    case DataType::kFloat64:
      return function(WideType<double>());
    default:
      return function(WideType<float>());
  }
}

// ---- Magnitudes as integers: for finite numbers they compare as the magnitudes do.

template <typename Lane>
using KeyOf = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;

template <typename Lane>
constexpr KeyOf<Lane> magnitude_key(Lane lane) {
  using Key = KeyOf<Lane>;
  return std::bit_cast<Key>(lane) & static_cast<Key>(~Key{0} >> 1);
}

template <typename Lane>
inline constexpr KeyOf<Lane> kInfinityKey =
    sizeof(Lane) == 4 ? static_cast<KeyOf<Lane>>(0x7f800000U)
                      : static_cast<KeyOf<Lane>>(0x7ff0000000000000U);

/// The one NaN that all results have (reduce.hpp).
template <typename Lane>
constexpr Lane one_nan() {
  return std::bit_cast<Lane>(static_cast<KeyOf<Lane>>(
      sizeof(Lane) == 4 ? std::uint64_t{0x7fc00000} : std::uint64_t{0x7ff8000000000000}));
}

// ---- float16 with a power of two.

/// No scaled float16 is larger: rounding up to 2^15 could, times the scale, be infinite.
inline constexpr float kHalfLimit = 32752.0F;
inline constexpr std::uint16_t kHalfLimitBits = 0x77ff;

/// Exponents of scales: a float16 times two to them is a Lane, exactly and never infinite.
template <typename Lane>
inline constexpr int kMinScaleExponent = sizeof(Lane) == 4 ? -125 : -1000;
template <typename Lane>
inline constexpr int kMaxScaleExponent = sizeof(Lane) == 4 ? 113 : 1009;

/// 2^exponent, for exponents of normal numbers.
template <typename Lane>
constexpr Lane power_of_two(int exponent) {
  constexpr int kBias = sizeof(Lane) == 4 ? 127 : 1023;
  constexpr int kFractionBits = sizeof(Lane) == 4 ? 23 : 52;
  return std::bit_cast<Lane>(static_cast<KeyOf<Lane>>(exponent + kBias) << kFractionBits);
}

}  // namespace lightcc::detail
