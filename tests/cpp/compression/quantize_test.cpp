// Quantised parts against a scalar reference, bit for bit at every SIMD level, and what a state
// keeps of them.
#include "lightcc/compression/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/topk_state.hpp"

#include "compression/fp8_testing.hpp"
#include "compression/topk_testing.hpp"

namespace lightcc::quantize_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kCounts[] = {0, 1, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 5003};
constexpr Compressor kCompressors[] = {
    Compressor::kInt8, Compressor::kInt4, Compressor::kSign, Compressor::kFp8};

bool is_wide(DataType dtype) {
  return dtype == DataType::kFloat64;
}

template <typename Lane>
Buffer lanes_of(const std::vector<double>& values) {
  Buffer bytes(values.size() * sizeof(Lane));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto lane = static_cast<Lane>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(Lane), &lane, sizeof(Lane));
  }
  return bytes;
}

Buffer lanes_of(DataType dtype, const std::vector<double>& values) {
  return is_wide(dtype) ? lanes_of<double>(values) : lanes_of<float>(values);
}

double lane(DataType dtype, const Buffer& lanes, std::size_t i) {
  return get(is_wide(dtype) ? DataType::kFloat64 : DataType::kFloat32, lanes.data(), i);
}

// ---- The reference: one element at a time, as kernels/quantize_blocks.hpp has it in words.

template <typename Lane>
std::uint16_t reference_scale(Lane exact, Lane levels) {
  using Key = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;
  constexpr unsigned kShift = sizeof(Lane) == 4 ? 16 : 48;
  const auto upper = [](Lane x) { return static_cast<unsigned>(std::bit_cast<Key>(x) >> kShift); };
  const auto value = [](unsigned bits) { return std::bit_cast<Lane>(Key{bits} << kShift); };
  unsigned bits = upper(exact);
  if (value(bits) < exact) {
    ++bits;
  }
  while (bits > 0 && !std::isfinite(value(bits) * levels)) {
    --bits;
  }
  return static_cast<std::uint16_t>(value(bits) < std::numeric_limits<Lane>::min() ? 0 : bits);
}

struct Reference {
  std::vector<std::uint16_t> scales;
  std::vector<int> codes;
  std::vector<double> sent;
  std::vector<double> left;
};

/// 16 sums of every 16th element, and their sum by halves.
template <typename Lane>
Lane mean_magnitude(std::span<const double> block) {
  std::vector<Lane> sums(16);
  for (std::size_t i = 0; i < block.size(); ++i) {
    sums[i % 16] += std::abs(static_cast<Lane>(block[i])) / 128;
  }
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) {
      sums[j] += sums[j + width];
    }
  }
  return sums[0] * (Lane{128} / static_cast<Lane>(block.size()));
}

/// What a code can be at most.
double levels_of(Compressor compressor) {
  switch (compressor) {
    case Compressor::kInt8:
      return 127.0;
    case Compressor::kInt4:
      return 7.0;
    case Compressor::kFp8:
      return kFp8Values.back();
    default:
      return 1.0;
  }
}

/// The code of an element whose block's scale is not 0, and what it stands for.
template <typename Lane>
std::pair<int, Lane> reference_code(Lane x, Lane scale, Compressor compressor) {
  if (compressor == Compressor::kSign) {
    return x < 0 ? std::pair(-1, Lane{-1}) : std::pair(1, Lane{1});
  }
  const auto levels = static_cast<Lane>(levels_of(compressor));
  const Lane scaled = std::clamp<Lane>(x * (Lane{1} / scale), -levels, levels);
  if (compressor == Compressor::kFp8) {
    const unsigned code = fp8_code(scaled);
    return {static_cast<int>(code), static_cast<Lane>(fp8_value(code))};
  }
  const Lane code = std::nearbyint(scaled);
  return {static_cast<int>(code), code};
}

template <typename Lane>
Reference reference(const std::vector<double>& acc, Compressor compressor) {
  using Key = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;
  constexpr unsigned kShift = sizeof(Lane) == 4 ? 16 : 48;
  const auto levels = static_cast<Lane>(levels_of(compressor));
  const bool is_mean = compressor == Compressor::kSign;
  Reference result;
  for (std::size_t begin = 0; begin < acc.size(); begin += kQuantizedBlockElems) {
    const std::size_t end = std::min(begin + kQuantizedBlockElems, acc.size());
    Lane peak = 0;
    for (std::size_t i = begin; i < end; ++i) {
      peak = std::max(peak, std::abs(static_cast<Lane>(acc[i])));
    }
    const std::span<const double> block(acc.data() + begin, end - begin);
    const Lane exact = is_mean ? mean_magnitude<Lane>(block) : peak / levels;
    result.scales.push_back(reference_scale(exact, levels));
    const Lane scale = std::bit_cast<Lane>(Key{result.scales.back()} << kShift);
    for (std::size_t i = begin; i < end; ++i) {
      const auto x = static_cast<Lane>(acc[i]);
      const auto [code, value] =
          scale == 0 ? std::pair(0, Lane{0}) : reference_code(x, scale, compressor);
      result.codes.push_back(code);
      result.sent.push_back(scale * value);
      result.left.push_back(x - scale * value);
    }
  }
  return result;
}

Reference reference(DataType dtype, const std::vector<double>& acc, Compressor compressor) {
  return is_wide(dtype) ? reference<double>(acc, compressor) : reference<float>(acc, compressor);
}

int code_in(const Buffer& part, std::size_t elements, Compressor compressor, std::size_t i) {
  const std::size_t scales = (elements + kQuantizedBlockElems - 1) / kQuantizedBlockElems * 2;
  if (compressor == Compressor::kInt8) {
    return static_cast<std::int8_t>(part[scales + i]);
  }
  if (compressor == Compressor::kFp8) {
    return std::to_integer<int>(part[scales + i]);
  }
  const std::size_t block = i / kQuantizedBlockElems;
  const std::size_t offset = i % kQuantizedBlockElems;
  if (compressor == Compressor::kSign) {
    std::uint16_t scale = 0;
    std::memcpy(&scale, part.data() + block * 2, 2);
    const auto byte = std::to_integer<unsigned>(part[scales + block * 16 + offset % 16]);
    return scale == 0 ? 0 : ((byte >> (offset / 16)) % 2 == 0 ? 1 : -1);
  }
  const auto byte = std::to_integer<unsigned>(part[scales + block * 64 + offset % 64]);
  const int code = static_cast<int>(offset < 64 ? byte & 15U : byte >> 4);
  return code < 8 ? code : code - 16;
}

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
  std::vector<double> kept = mixed_values(rng, count, dtype);
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
            if (compressor != Compressor::kSign) {
              ASSERT_EQ(expected.sent[i] + expected.left[i], inputs.acc[i]) << "element " << i;
            } else {
              const double last = is_wide(dtype) ? DBL_EPSILON : FLT_EPSILON;
              ASSERT_NEAR(expected.sent[i] + expected.left[i],
                          inputs.acc[i],
                          std::abs(expected.sent[i]) * last)
                  << "element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(Quantize, keeps_less_than_a_step_of_the_scale_back) {
  Rng rng(3);
  const std::vector<double> values = normal_values(rng, 4096);
  for (const Compressor compressor : {Compressor::kInt8, Compressor::kInt4}) {
    const Reference expected = reference(DataType::kFloat32, values, compressor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double scale = get(DataType::kBfloat16,
                               std::as_bytes(std::span(expected.scales)).data(),
                               i / kQuantizedBlockElems);
      ASSERT_LE(std::abs(expected.left[i]), scale * 0.50001);
    }
  }
}

TEST(Quantize, sends_of_one_bit_the_mean_magnitude_and_brings_blocks_closer_to_zero) {
  Rng rng(4);
  const std::vector<double> values = normal_values(rng, 1000);
  const Reference expected = reference(DataType::kFloat32, values, Compressor::kSign);
  for (std::size_t begin = 0; begin < values.size(); begin += kQuantizedBlockElems) {
    double sum = 0.0;
    double before = 0.0;
    double after = 0.0;
    const std::size_t end = std::min(begin + kQuantizedBlockElems, values.size());
    for (std::size_t i = begin; i < end; ++i) {
      sum += std::abs(values[i]);
      before += values[i] * values[i];
      after += expected.left[i] * expected.left[i];
    }
    const double mean = sum / static_cast<double>(end - begin);
    EXPECT_NEAR(std::abs(expected.sent[begin]), mean, mean / 100);
    EXPECT_LT(after, before / 2);
  }
}

/// Of docs/compression-theory.md.
TEST(Quantize, a_step_sends_the_share_that_theory_asks_for) {
  Rng rng(9);
  std::vector<std::vector<double>> blocks{normal_values(rng, 128)};
  for (const double other : {0.0, 0.001, 0.0714, 0.5}) {  // 0.0714: half a scale of int4.
    blocks.emplace_back(128, other);
    blocks.back()[5] = 1.0;
  }
  for (const auto& [compressor, delta] : {std::pair(Compressor::kInt8, 0.998),
                                          std::pair(Compressor::kFp8, 0.996),
                                          std::pair(Compressor::kInt4, 0.6),
                                          std::pair(Compressor::kSign, 1.0 / 128)}) {
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
  EXPECT_EQ(quantized_bytes(5, 1), 2U + 5);
  EXPECT_EQ(quantized_bytes(128, 1), 18U);
  EXPECT_EQ(quantized_bytes(200, 1), 2U * 2 + 16 + 16);
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

TEST(Quantize, makes_a_part_void_where_a_number_is_none_and_says_so) {
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
          const auto is_void = check_quantized(part, values.size(), format);
          ASSERT_TRUE(is_void.ok());
          EXPECT_TRUE(*is_void);
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
        const bool is_rounded = compressor == Compressor::kSign;
        EXPECT_NEAR(sent + left, values[i], is_rounded ? std::abs(sent) * FLT_EPSILON : 0.0);
      }
    }
  }
}

// ---- Sums.

struct Sum {
  std::vector<Buffer> parts;
  std::vector<double> lanes;  // x_0 + x_1 + ..., as lanes are added.
  std::vector<std::span<const std::byte>> views() const { return {parts.begin(), parts.end()}; }
};

Sum sum_of(std::size_t members, std::size_t count, const QuantizedFormat& format) {
  Sum sum;
  sum.lanes.assign(count, 0.0);
  Rng rng(members + count);
  for (std::size_t member = 0; member < members; ++member) {
    const std::vector<double> values = normal_values(rng, count, 0.1);
    const Buffer tensor = tensor_of(format.dtype, values);
    const Buffer residual = lanes_of(format.dtype, std::vector<double>(count));
    Buffer next(residual.size());
    sum.parts.emplace_back(quantized_bytes(count, format.bits()));
    EXPECT_TRUE(quantize(tensor.data(),
                         residual.data(),
                         next.data(),
                         count,
                         format,
                         sum.parts.back(),
                         SimdLevel::kPlain));
    std::vector<double> acc(count);
    for (std::size_t i = 0; i < count; ++i) {
      acc[i] = get(format.dtype, tensor.data(), i);
    }
    const Reference sent = reference(format.dtype, acc, format.compressor);
    for (std::size_t i = 0; i < count; ++i) {
      sum.lanes[i] =
          member == 0 ? sent.sent[i] : multiply_add(format.dtype, sum.lanes[i], 1.0, sent.sent[i]);
    }
  }
  return sum;
}

TEST(Dequantize, adds_in_order_multiplies_and_rounds_once_at_every_level) {
  for (const DataType dtype : kFloatTypes) {
    for (const Compressor compressor : kCompressors) {
      for (const std::size_t count : {1U, 130U, 2100U}) {
        for (const double factor : {1.0, 0.25, 1.0 / 3.0}) {
          const QuantizedFormat format{.dtype = dtype, .compressor = compressor};
          const Sum sum = sum_of(3, count, format);
          for (const SimdLevel level : levels()) {
            Buffer out(count * element_size(dtype));
            dequantize(sum.views(), count, format, factor, out.data(), level);
            for (std::size_t i = 0; i < count; ++i) {
              const double product = multiply_add(dtype, sum.lanes[i], factor, 0.0);
              ASSERT_EQ(get(dtype, out.data(), i), rounded(dtype, product)) << "element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(Requantize, sends_the_sum_and_owes_the_rest) {
  for (const DataType dtype : kFloatTypes) {
    for (const Compressor compressor : kCompressors) {
      for (const std::size_t count : {1U, 130U, 2100U}) {
        const QuantizedFormat format{.dtype = dtype, .compressor = compressor};
        const Sum sum = sum_of(4, count, format);
        const Reference expected = reference(dtype, sum.lanes, compressor);
        for (const SimdLevel level : levels()) {
          Rng rng(5);
          const std::vector<double> before = normal_values(rng, count, 0.001);
          Buffer residual = lanes_of(dtype, before);
          const Buffer old = residual;
          Buffer part(quantized_bytes(count, bits_of(compressor)));
          ASSERT_TRUE(requantize(sum.views(), count, format, residual.data(), part, level));
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(code_in(part, count, compressor, i), expected.codes[i]);
            ASSERT_EQ(lane(dtype, residual, i),
                      multiply_add(dtype, lane(dtype, old, i), 1.0, expected.left[i]));
          }
        }
      }
    }
  }
}

TEST(Requantize, of_a_sum_that_overflows_is_void) {
  const QuantizedFormat format{.dtype = DataType::kFloat32, .compressor = Compressor::kInt8};
  const Buffer tensor = tensor_of(DataType::kFloat32, std::vector<double>(200, FLT_MAX));
  const Buffer zeros = lanes_of(DataType::kFloat32, std::vector<double>(200));
  Buffer next(zeros.size());
  Buffer part(quantized_bytes(200, 8));
  ASSERT_TRUE(
      quantize(tensor.data(), zeros.data(), next.data(), 200, format, part, SimdLevel::kPlain));
  const std::vector<std::span<const std::byte>> twice{part, part};
  Buffer out(part.size());
  EXPECT_FALSE(requantize(twice, 200, format, next.data(), out, detect_simd_level()));
  EXPECT_TRUE(*check_quantized(out, 200, format));
}

// ---- States.

TEST(QuantizedState, keeps_what_was_not_said_and_gives_it_back_when_all_travels) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    for (const Compressor compressor : kCompressors) {
      // Codes of fp8 are as fine as 2^-25 of a block's largest element, so float32 has no room for
      // a residual of one step and an element of the next.
      const bool rounds = compressor == Compressor::kFp8 && dtype == DataType::kFloat32;
      const double slack = rounds ? 1e-5 : 0.0;
      constexpr std::size_t kCount = 700;
      TopkState state(dtype, kCount);
      std::vector<double> put_in(kCount);
      std::vector<double> sent(kCount);
      Rng rng(9);
      for (int step = 0; step < 5; ++step) {
        std::vector<double> values = normal_values(rng, kCount);
        for (double& value : values) {
          value = std::round(value * 64.0) / 64.0;  // So that sums are exact.
        }
        const Buffer shard = tensor_of(dtype, values);
        const std::vector<ShardRange> parts{quantized_part(kCount, 2, 0),
                                            quantized_part(kCount, 2, 1)};
        Buffer out(quantized_bytes(kCount, bits_of(compressor)));
        ASSERT_TRUE(*state.quantize(shard.data(), parts, compressor, out));
        state.commit();
        std::size_t at = 0;
        for (const ShardRange& part : parts) {
          const std::size_t bytes = quantized_bytes(part.size_elems(), bits_of(compressor));
          const std::span<const std::byte> view = std::span(out).subspan(at, bytes);
          Buffer decoded(part.size_elems() * element_size(dtype));
          dequantize({&view, 1},
                     part.size_elems(),
                     {.dtype = dtype, .compressor = compressor},
                     1.0,
                     decoded.data(),
                     detect_simd_level());
          for (std::size_t i = 0; i < part.size_elems(); ++i) {
            sent[part.begin + i] += get(dtype, decoded.data(), i);
          }
          at += bytes;
        }
        for (std::size_t i = 0; i < kCount; ++i) {
          put_in[i] += values[i];
          ASSERT_NEAR(sent[i] + state.residual_at(i), put_in[i], slack) << "element " << i;
        }
      }
      Buffer rest(kCount * element_size(dtype));
      ASSERT_TRUE(state.flush_into(rest.data()).ok());
      state.commit();
      for (std::size_t i = 0; i < kCount; ++i) {
        EXPECT_NEAR(sent[i] + get(dtype, rest.data(), i), put_in[i], slack);
        EXPECT_EQ(state.residual_at(i), 0.0);
      }
    }
  }
}

TEST(QuantizedState, undoes_a_step_with_every_bit) {
  TopkState state(DataType::kFloat32, 300);
  Rng rng(4);
  const std::vector<ShardRange> parts{{0, 300}};
  Buffer out(quantized_bytes(300, 8));
  const Buffer good = tensor_of(DataType::kFloat32, normal_values(rng, 300));
  ASSERT_TRUE(*state.quantize(good.data(), parts, Compressor::kInt8, out));
  EXPECT_TRUE(state.is_pending());
  EXPECT_EQ(state.quantize(good.data(), parts, Compressor::kInt8, out).status().code(),
            ErrorCode::kInternal);
  state.commit();
  const Buffer before = saved(state);
  std::vector<double> values = normal_values(rng, 300);
  const std::vector<std::span<const std::byte>> sums{out, out};
  ASSERT_TRUE(
      *state.quantize(tensor_of(DataType::kFloat32, values).data(), parts, Compressor::kInt8, out));
  Buffer again(out.size());
  ASSERT_TRUE(*state.requantize(sums, parts[0], Compressor::kInt8, again));
  state.rollback();
  EXPECT_EQ(saved(state), before);
  values[7] = kNan;
  ASSERT_FALSE(
      *state.quantize(tensor_of(DataType::kFloat32, values).data(), parts, Compressor::kInt8, out));
  state.commit();  // Not finite: nothing is committed.
  EXPECT_EQ(saved(state), before);
  EXPECT_EQ(state.requantize(sums, parts[0], Compressor::kInt8, again).status().code(),
            ErrorCode::kInternal);
}

TEST(QuantizedState, sends_zeros_for_a_rank_that_has_joined) {
  TopkState state(DataType::kBfloat16, 200);
  const std::vector<ShardRange> parts{{0, 200}};
  Buffer out(quantized_bytes(200, 4), std::byte{1});
  ASSERT_TRUE(*state.quantize(nullptr, parts, Compressor::kInt4, out));
  EXPECT_EQ(out, Buffer(out.size()));
}

}  // namespace
}  // namespace lightcc::quantize_test
