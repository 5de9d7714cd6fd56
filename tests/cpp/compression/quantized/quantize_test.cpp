// Quantised parts against a scalar reference, bit for bit at every SIMD level.
#include "lightcc/compression/quantized/quantize.hpp"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "compression/quantize_testing.hpp"
#include "compression/topk_testing.hpp"

namespace lightcc::quantize_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr std::array<std::size_t, 12> kCounts = {
    0, 1, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 5003};

/// Values of all magnitudes: most blocks ordinary, some tiny, huge or zero.
std::vector<double> mixed_values(Rng& rng, std::size_t count, DataType dtype) {
  std::vector<double> values(count);
  const int widest = dtype == DataType::kFloat16 ? 12 : (is_wide(dtype) ? 1000 : 118);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t kind = i / kQuantizedBlockElems % 5;
    const int exponent = kind == 1 ? -widest : (kind == 2 ? widest : 0);
    const double spread = std::ldexp(1.0, static_cast<int>(rng.unit() * 20.0) - 10);
    values[i] = kind == 3 ? 0.0 : std::ldexp(draw_normal(rng, 0.3) * spread, exponent / 2);
  }
  return values;
}

struct Inputs {
  std::vector<double> acc;
  Buffer tensor;
  Buffer residual;
};

Inputs inputs_of(Rng& rng, std::size_t count, DataType dtype) {
  Inputs inputs;
  inputs.tensor = tensor_of(dtype, mixed_values(rng, count, dtype));
  const std::vector<double> kept = mixed_values(rng, count, dtype);
  inputs.residual = lanes_of(dtype, kept);
  for (std::size_t i = 0; i < count; ++i) {
    inputs.acc.push_back(multiply_add(
        dtype, get(dtype, inputs.tensor.data(), i), 1.0, lane(dtype, inputs.residual, i)));
  }
  return inputs;
}

TEST(Quantize, has_the_bits_of_the_reference_at_every_level_and_loses_nothing) {
  for (const DataType dtype : kFloatTypes) {
    for (const Compressor compressor : kCompressors) {
      for (const std::size_t count : kCounts) {
        Rng rng(count + bits_of(compressor));
        const Inputs inputs = inputs_of(rng, count, dtype);
        const Reference expected = reference(dtype, inputs.acc, compressor);
        for (const SimdLevel level : levels()) {
          SCOPED_TRACE(std::string(data_type_name(dtype)) + " as " + compressor_name(compressor) +
                       ", " + std::to_string(count) + " at " + simd_level_name(level));
          // One byte off, so that nothing is aligned.
          Buffer shifted(inputs.tensor.size() + 1);
          std::ranges::copy(inputs.tensor, shifted.begin() + 1);
          Buffer next(inputs.residual.size());
          Buffer part(quantized_bytes(count, bits_of(compressor)));
          ASSERT_TRUE(quantize(shifted.data() + 1,
                               inputs.residual.data(),
                               next.data(),
                               count,
                               {.dtype = dtype, .compressor = compressor},
                               part,
                               level));
          for (std::size_t block = 0; block < expected.scales.size(); ++block) {
            std::uint16_t scale = 0;
            std::memcpy(&scale, part.data() + block * 2, 2);
            ASSERT_EQ(scale, expected.scales[block]) << "block " << block;
          }
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(code_in(part, count, compressor, i), expected.codes[i]) << "element " << i;
            ASSERT_EQ(lane(dtype, next, i), expected.left[i]) << "element " << i;
            ASSERT_EQ(expected.sent[i] + expected.left[i], inputs.acc[i]) << "element " << i;
          }
        }
      }
    }
  }
}

TEST(Quantize, keeps_less_than_a_step_of_the_scale_back) {
  Rng rng(3);
  const std::vector<double> values = normal_values(rng, 4096);
  for (const Compressor compressor : kCompressors) {
    const Reference expected = reference(DataType::kFloat32, values, compressor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double scale = get(DataType::kBfloat16,
                               std::as_bytes(std::span(expected.scales)).data(),
                               i / kQuantizedBlockElems);
      ASSERT_LE(std::abs(expected.left[i]), scale * 0.50001);
    }
  }
}

/// The theory is docs/inside/compression-theory.md.
TEST(Quantize, a_step_sends_the_share_that_theory_asks_for) {
  Rng rng(9);
  std::vector<std::vector<double>> blocks{normal_values(rng, 128)};
  for (const double other : {0.0, 0.001, 0.0714, 0.5}) {  // 0.0714: half a scale of int4.
    blocks.emplace_back(128, other);
    blocks.back()[5] = 1.0;
  }
  for (const auto& [compressor, delta] :
       {std::pair(Compressor::kInt8, 0.998), std::pair(Compressor::kInt4, 0.6)}) {
    for (const std::vector<double>& block : blocks) {
      const Buffer lanes = lanes_of<float>(block);
      const Buffer zeros(lanes.size());
      Buffer left(lanes.size());
      Buffer out(quantized_bytes(block.size(), bits_of(compressor)));
      const QuantizedFormat format{.dtype = DataType::kFloat32, .compressor = compressor};
      ASSERT_TRUE(quantize(
          lanes.data(), zeros.data(), left.data(), block.size(), format, out, detect_simd_level()));
      double energy = 0.0;
      double kept = 0.0;
      for (std::size_t i = 0; i < block.size(); ++i) {
        energy += std::pow(lane(DataType::kFloat32, lanes, i), 2);
        kept += std::pow(lane(DataType::kFloat32, left, i), 2);
      }
      EXPECT_LE(kept, (1.0 - delta) * energy * (1.0 + 1e-6)) << compressor_name(compressor);
    }
  }
}

TEST(Quantize, takes_the_bytes_of_the_formula) {
  EXPECT_EQ(quantized_bytes(0, 8), 0U);
  EXPECT_EQ(quantized_bytes(1, 8), 3U);
  EXPECT_EQ(quantized_bytes(128, 8), 130U);
  EXPECT_EQ(quantized_bytes(129, 8), 133U);
  EXPECT_EQ(quantized_bytes(1, 4), 3U);
  EXPECT_EQ(quantized_bytes(100, 4), 66U);
  EXPECT_EQ(quantized_bytes(128, 4), 66U);
  EXPECT_EQ(quantized_bytes(200, 4), 2U * 2 + 64 + 64);
  EXPECT_EQ(quantized_bytes(std::size_t{1} << 20, 4), (std::size_t{1} << 20) * 66 / 128);
}

TEST(Quantize, cuts_a_shard_between_blocks) {
  for (const std::size_t count : kCounts) {
    for (const std::size_t parts : {1U, 2U, 3U, 7U}) {
      std::size_t end = 0;
      std::size_t bytes = 0;
      for (std::size_t j = 0; j < parts; ++j) {
        const ShardRange part = quantized_part(count, parts, j);
        EXPECT_EQ(part.begin, end);
        EXPECT_TRUE(part.begin % kQuantizedBlockElems == 0 || part.begin == count);
        end = part.end;
        bytes += quantized_bytes(part.size_elems(), 4);
      }
      EXPECT_EQ(end, count);
      EXPECT_EQ(bytes, quantized_bytes(count, 4));
    }
  }
}

TEST(Quantize, says_so_where_a_number_is_none) {
  for (const DataType dtype : kFloatTypes) {
    for (const double bad : {kNan, kInfinity, -kInfinity}) {
      for (const std::size_t at : {0U, 130U, 299U}) {
        for (const SimdLevel level : levels()) {
          std::vector<double> values(300, 1.0);
          values[at] = bad;
          const Buffer tensor = tensor_of(dtype, values);
          const Buffer residual = lanes_of(dtype, std::vector<double>(300, 0.5));
          Buffer next(residual.size());
          Buffer part(quantized_bytes(300, 4));
          const QuantizedFormat format{.dtype = dtype, .compressor = Compressor::kInt4};
          EXPECT_FALSE(quantize(
              tensor.data(), residual.data(), next.data(), values.size(), format, part, level));
          const auto non_finite = check_quantized(part, values.size(), format);
          ASSERT_TRUE(non_finite.ok());
          EXPECT_TRUE(*non_finite);
        }
      }
    }
  }
}

TEST(Quantize, refuses_what_no_peer_writes) {
  const QuantizedFormat format{.dtype = DataType::kFloat32, .compressor = Compressor::kInt8};
  Buffer part(quantized_bytes(300, 8));
  const auto whole = check_quantized(part, 300, format);
  ASSERT_TRUE(whole.ok());
  EXPECT_FALSE(*whole);
  EXPECT_EQ(check_quantized(std::span(part).first(part.size() - 1), 300, format).status().code(),
            ErrorCode::kPeerFailed);
  part[5] = std::byte{0x80};  // The sign of the last scale.
  EXPECT_EQ(check_quantized(part, 300, format).status().message(),
            "a rank sent quantised elements whose scale is below zero");
}

TEST(Quantize, stays_finite_at_the_end_of_the_range) {
  const std::vector<double> values = {FLT_MAX, -FLT_MAX, 1.0, FLT_MIN, 0.0};
  for (const Compressor compressor : kCompressors) {
    const Buffer tensor = tensor_of(DataType::kFloat32, values);
    const Buffer residual = lanes_of(DataType::kFloat32, std::vector<double>(values.size()));
    Buffer next(residual.size());
    Buffer part(quantized_bytes(values.size(), bits_of(compressor)));
    const QuantizedFormat format{.dtype = DataType::kFloat32, .compressor = compressor};
    for (const SimdLevel level : levels()) {
      ASSERT_TRUE(quantize(
          tensor.data(), residual.data(), next.data(), values.size(), format, part, level));
      Buffer out(tensor.size());
      const std::span<const std::byte> view(part);
      dequantize({&view, 1}, values.size(), format, 1.0, out.data(), level);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double sent = get(DataType::kFloat32, out.data(), i);
        const double left = lane(DataType::kFloat32, next, i);
        EXPECT_TRUE(std::isfinite(sent) && std::isfinite(left));
        EXPECT_EQ(sent + left, values[i]);
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::quantize_test
