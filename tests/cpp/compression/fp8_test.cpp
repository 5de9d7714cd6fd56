// Blocks of E4M3 codes against the specification, number by number, at every SIMD level.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"
#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/quantize_blocks.hpp"

#include "compression/fp8_testing.hpp"
#include "compression/topk_testing.hpp"

namespace lightcc::fp8_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kElems = kQuantizedBlockElems;

template <typename Lane>
using KeyOf = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;

template <typename Lane>
std::uint16_t upper_bits(Lane scale) {
  return static_cast<std::uint16_t>(std::bit_cast<KeyOf<Lane>>(scale) >> (sizeof(Lane) * 8 - 16));
}

template <typename Lane>
struct Blocks {
  std::vector<Lane> left;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint8_t> codes;
};

/// Whole blocks of lanes to codes.
template <typename Lane>
Blocks<Lane> encode(const std::vector<Lane>& lanes, SimdLevel level) {
  const std::size_t blocks = lanes.size() / kElems;
  Blocks<Lane> out{std::vector<Lane>(lanes.size()),
                   std::vector<std::uint16_t>(blocks),
                   std::vector<std::uint8_t>(lanes.size())};
  const IeeeFloatMode mode;
  EXPECT_TRUE(
      quantize_kernel(level)({.input = std::as_bytes(std::span(lanes)).data(),
                              .next = std::as_writable_bytes(std::span(out.left)).data(),
                              .scales = std::as_writable_bytes(std::span(out.scales)).data(),
                              .codes = std::as_writable_bytes(std::span(out.codes)).data(),
                              .blocks = blocks,
                              .wide = sizeof(Lane) == sizeof(double),
                              .bits = 8,
                              .floating = true}));
  return out;
}

template <typename Lane>
std::vector<Lane> decode(const std::vector<std::uint8_t>& codes,
                         const std::vector<std::uint16_t>& scales,
                         bool add,
                         SimdLevel level) {
  std::vector<Lane> lanes(codes.size(), Lane{1});
  const IeeeFloatMode mode;
  dequantize_kernel(level)({.scales = std::as_bytes(std::span(scales)).data(),
                            .codes = std::as_bytes(std::span(codes)).data(),
                            .lanes = std::as_writable_bytes(std::span(lanes)).data(),
                            .blocks = scales.size(),
                            .wide = sizeof(Lane) == sizeof(double),
                            .bits = 8,
                            .floating = true,
                            .add = add});
  return lanes;
}

/// Blocks of 127 values each after one that gives the block its scale.
template <typename Lane>
std::vector<Lane> blocks_with_scale(const std::vector<Lane>& values, Lane scale) {
  std::vector<Lane> lanes;
  for (const Lane value : values) {
    if (lanes.size() % kElems == 0) {
      lanes.push_back(scale * Lane{448});
    }
    lanes.push_back(value);
  }
  lanes.resize((lanes.size() + kElems - 1) / kElems * kElems, Lane{0});
  return lanes;
}

/// Codes and what is left of `values`, in blocks of `scale`, are the specification's. The product
/// with the inverse rounds to a lane, as quantize_blocks.hpp has it.
template <typename Lane>
void check_values(const std::vector<Lane>& values, Lane scale) {
  const std::vector<Lane> lanes = blocks_with_scale(values, scale);
  std::vector<std::uint8_t> expected(lanes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const Lane scaled = lanes[i] * (Lane{1} / scale);
    expected[i] = static_cast<std::uint8_t>(fp8_code(scaled));
  }
  for (const SimdLevel level : levels()) {
    SCOPED_TRACE(std::string(simd_level_name(level)) + ", scale " + std::to_string(scale));
    const Blocks<Lane> found = encode(lanes, level);
    const std::vector<Lane> sent = decode<Lane>(found.codes, found.scales, false, level);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      ASSERT_EQ(found.scales[i / kElems], upper_bits(scale));
      ASSERT_EQ(found.codes[i], expected[i]) << lanes[i];
      ASSERT_EQ(sent[i], scale * static_cast<Lane>(fp8_value(expected[i]))) << lanes[i];
      ASSERT_EQ(found.left[i], lanes[i] - sent[i]) << lanes[i];
      ASSERT_EQ(found.left[i] + sent[i], lanes[i]) << lanes[i];
    }
  }
}

template <typename Lane>
void check_all_codes() {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t code = 0; code < codes.size(); ++code) {
    codes[code] = static_cast<std::uint8_t>(code);
  }
  for (const Lane scale : {Lane{1}, Lane{0.1796875}, std::numeric_limits<Lane>::min()}) {
    const std::uint16_t upper = upper_bits(scale);
    for (const SimdLevel level : levels()) {
      const std::vector<Lane> lanes = decode<Lane>(codes, {upper, upper}, false, level);
      const std::vector<Lane> sums = decode<Lane>(codes, {upper, upper}, true, level);
      for (unsigned code = 0; code < codes.size(); ++code) {
        const auto value = static_cast<Lane>(fp8_value(code));
        ASSERT_EQ(std::isnan(lanes[code]), (code & kFp8Nan) == kFp8Nan) << code;
        ASSERT_EQ(std::isnan(sums[code]), std::isnan(value)) << code;
        if (!std::isnan(value)) {
          // -0.0 is not 0.0 here.
          ASSERT_EQ(std::bit_cast<KeyOf<Lane>>(lanes[code]),
                    std::bit_cast<KeyOf<Lane>>(scale * value))
              << code;
          ASSERT_EQ(sums[code], Lane{1} + scale * value) << code;
        }
      }
    }
  }
}

TEST(Fp8, decodes_each_of_256_codes_as_the_specification_does) {
  EXPECT_EQ(fp8_value(0x7e), 448.0);
  EXPECT_EQ(fp8_value(0x08), std::ldexp(1.0, -6));
  EXPECT_EQ(fp8_value(0x01), std::ldexp(1.0, -9));
  EXPECT_TRUE(std::isnan(fp8_value(0xff)));
  check_all_codes<float>();
  check_all_codes<double>();
}

TEST(Fp8, rounds_every_float16_to_the_nearest_code) {
  std::vector<float> all;
  std::vector<float> small;
  for (unsigned bits = 0; bits <= 0xffffU; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isfinite(value)) {
      all.push_back(value);
    }
    if (std::abs(value) <= 448.0F) {
      small.push_back(value);
    }
  }
  ASSERT_EQ(all.size(), 2U * 0x7c00);
  check_values(all, 256.0F);  // 448 of them is more than the largest float16.
  check_values(small, 1.0F);
  check_values(std::vector<double>(all.begin(), all.end()), 256.0);
  check_values(std::vector<double>(small.begin(), small.end()), 1.0);
}

template <typename Lane>
void check_ties() {
  const Lane up = std::numeric_limits<Lane>::infinity();
  std::vector<Lane> values;
  for (std::size_t code = 0; code + 1 < kFp8Values.size(); ++code) {
    const auto low = static_cast<Lane>(kFp8Values[code]);
    const auto middle = static_cast<Lane>((kFp8Values[code] + kFp8Values[code + 1]) / 2);
    for (const Lane sign : {Lane{1}, Lane{-1}}) {
      for (const Lane value : {low, middle}) {
        values.push_back(sign * value);
        values.push_back(sign * std::nextafter(value, up));
        values.push_back(sign * std::nextafter(value, -up));
      }
    }
  }
  for (const Lane scale : {Lane{1}, Lane{0.25}}) {
    std::vector<Lane> scaled = values;
    for (Lane& value : scaled) {
      value *= scale;
    }
    check_values(scaled, scale);
  }
}

TEST(Fp8, rounds_ties_to_even_and_their_neighbours_to_the_nearest) {
  check_ties<float>();
  check_ties<double>();
}

template <typename Lane>
void check_random(Lane scale) {
  Rng rng(7);
  std::vector<Lane> values;
  for (int i = 0; i < 100'000; ++i) {
    // All binades that codes have, and some below.
    const int exponent = static_cast<int>(rng.unit() * 24.0) - 14;
    const auto value = static_cast<Lane>(std::ldexp(1.0 + rng.unit(), exponent));
    values.push_back(std::min(value, Lane{448}) * scale * (rng.unit() < 0.5 ? Lane{-1} : Lane{1}));
  }
  check_values(values, scale);
}

TEST(Fp8, rounds_random_numbers_under_any_scale_to_the_nearest_code) {
  for (const float scale : {1.0F, 0.0067138671875F, 1.9921875F, 0x1p-126F, 0x1.fcp100F}) {
    check_random<float>(scale);
  }
  for (const double scale : {1.0, 0x1.9p-7, 0x1p-1022, 0x1.fp1000}) {
    check_random<double>(scale);
  }
}

TEST(Fp8, saturates_where_no_scale_is_large_enough) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::vector<float> lanes(kElems, 1.0F);
  lanes[0] = kLargest;
  lanes[1] = -kLargest;
  for (const SimdLevel level : levels()) {
    const Blocks<float> found = encode(lanes, level);
    EXPECT_EQ(found.codes[0], 0x7e);
    EXPECT_EQ(found.codes[1], 0xfe);
    EXPECT_EQ(found.codes[2], 0x00);
    const std::vector<float> sent = decode<float>(found.codes, found.scales, false, level);
    EXPECT_LT(sent[0], kLargest);
    EXPECT_EQ(sent[0] + found.left[0], kLargest);
  }
}

TEST(Fp8, keeps_a_sixteenth_of_an_element_back_at_most_down_to_a_28672nd_of_the_largest) {
  Rng rng(8);
  std::vector<float> lanes(kElems * 100);
  for (float& lane : lanes) {
    lane = static_cast<float>(std::ldexp(1.0 + rng.unit(), -static_cast<int>(rng.unit() * 18.0)));
  }
  const Blocks<float> found = encode(lanes, detect_simd_level());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const std::uint32_t bits = std::uint32_t{found.scales[i / kElems]} << 16U;
    const float smallest = std::bit_cast<float>(bits) * 0x1p-6F;
    const float bound = std::max(lanes[i], smallest) / 16.0F;
    ASSERT_LE(std::abs(found.left[i]), bound * 1.0001F) << lanes[i];
  }
}

}  // namespace
}  // namespace lightcc::fp8_test
