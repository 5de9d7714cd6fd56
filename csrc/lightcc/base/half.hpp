// float16 (IEEE binary16) and bfloat16 to and from float32, in portable C++: the definition to
// which every SIMD form of these conversions is held.
//
// Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes infinity,
// subnormal results are kept. A NaN stays a NaN: quieted, with its sign and the upper bits of its
// payload, as the F16C instructions do (widening a bfloat16 is a mere shift and quiets nothing).
//
// All functions are free of branches on the value, so that a loop over them vectorises. They need
// the default rounding mode and no flush-to-zero, see collectives/kernels/float_mode.hpp.
#pragma once

#include <bit>
#include <cstdint>

namespace lightcc {

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  // Exponent and fraction in place, exponent still biased by 15.
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + (112U << 23);
  const std::uint32_t quiet = magnitude > 0x7c00U ? 0x00400000U : 0U;
  const std::uint32_t special = (shifted + (224U << 23)) | quiet;
  // fraction * 2^-24: the conversion and the product are exact.
  const auto subnormal = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  const std::uint32_t finite = magnitude < 0x0400U ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00U ? special : finite));
}

constexpr std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Rounds at bit 13: just under half a unit, plus one where the kept part is odd.
  const std::uint32_t normal =
      (magnitude - (112U << 23) + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13;
  // Below 2^-14 the sum with 0.5 has 2^-24 as the unit of its last place: the addition rounds. The
  // bound keeps values out of the addition whose result is not used.
  const std::uint32_t small = magnitude < (113U << 23) ? magnitude : 0U;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(small) + 0.5F) - (126U << 23);
  const std::uint32_t nan = 0x7e00U | ((magnitude >> 13) & 0x03ffU);
  std::uint32_t result = magnitude < (113U << 23) ? subnormal : normal;
  result = magnitude >= (143U << 23) ? 0x7c00U : result;  // 2^16 and above, infinity among them.
  result = magnitude > (255U << 23) ? nan : result;
  return static_cast<std::uint16_t>(sign | result);
}

constexpr float bfloat16_to_float(std::uint16_t bfloat16) {
  return std::bit_cast<float>(std::uint32_t{bfloat16} << 16);
}

constexpr std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x0040U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > (255U << 23) ? nan : rounded);
}

}  // namespace lightcc
