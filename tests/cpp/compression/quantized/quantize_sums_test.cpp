// Sums of quantised parts against a scalar reference, bit for bit at every SIMD level.
#include <cfloat>
#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/quantized/quantize.hpp"

#include "compression/quantize_testing.hpp"
#include "compression/topk_testing.hpp"

namespace lightcc::quantize_sums_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

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

TEST(QuantizeSum, sends_the_sum_and_owes_the_rest) {
  for (const DataType dtype : kFloatTypes) {
    for (const Compressor compressor : kCompressors) {
      for (const std::size_t count : {1U, 130U, 2100U}) {
        const QuantizedFormat format{.dtype = dtype, .compressor = compressor};
        const Sum sum = sum_of(4, count, format);
        Rng rng(5);
        const Buffer own = lanes_of(dtype, normal_values(rng, count));
        std::vector<double> acc(count);
        for (std::size_t i = 0; i < count; ++i) {
          acc[i] = multiply_add(dtype, sum.lanes[i], 1.0, lane(dtype, own, i));
        }
        const Reference expected = reference(dtype, acc, compressor);
        for (const SimdLevel level : levels()) {
          Buffer left = own;
          Buffer part(quantized_bytes(count, bits_of(compressor)));
          ASSERT_TRUE(quantize_sum(sum.views(), count, format, left.data(), part, level));
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(code_in(part, count, compressor, i), expected.codes[i]);
            ASSERT_EQ(lane(dtype, left, i), expected.left[i]);
          }
        }
      }
    }
  }
}

TEST(QuantizeSum, of_a_sum_that_overflows_says_so) {
  const QuantizedFormat format{.dtype = DataType::kFloat32, .compressor = Compressor::kInt8};
  const Buffer tensor = tensor_of(DataType::kFloat32, std::vector<double>(200, FLT_MAX));
  const Buffer zeros = lanes_of(DataType::kFloat32, std::vector<double>(200));
  Buffer next(zeros.size());
  Buffer part(quantized_bytes(200, 8));
  ASSERT_TRUE(
      quantize(tensor.data(), zeros.data(), next.data(), 200, format, part, SimdLevel::kPlain));
  const std::vector<std::span<const std::byte>> twice{part, part};
  Buffer out(part.size());
  EXPECT_FALSE(quantize_sum(twice, 200, format, next.data(), out, detect_simd_level()));
  EXPECT_TRUE(*check_quantized(out, 200, format));
}

}  // namespace
}  // namespace lightcc::quantize_sums_test
