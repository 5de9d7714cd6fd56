// What a state keeps of quantised parts.
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/quantized/quantize.hpp"
#include "lightcc/compression/residual/host_residual.hpp"

#include "compression/quantize_testing.hpp"
#include "compression/topk_testing.hpp"

namespace lightcc::quantized_steps_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

TEST(QuantizedSteps, keeps_what_was_not_said_and_gives_it_back_when_all_travels) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    for (const Compressor compressor : kCompressors) {
      constexpr std::size_t kCount = 700;
      HostResidual state(dtype, kCount);
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
        ASSERT_TRUE(*state.quantize(shard.data(), parts, {}, compressor, out));
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
          ASSERT_EQ(sent[i] + state.residual_at(i), put_in[i]) << "element " << i;
        }
      }
      Buffer rest(kCount * element_size(dtype));
      ASSERT_TRUE(state.flush_into(rest.data()).ok());
      state.commit();
      for (std::size_t i = 0; i < kCount; ++i) {
        EXPECT_EQ(sent[i] + get(dtype, rest.data(), i), put_in[i]);
        EXPECT_EQ(state.residual_at(i), 0.0);
      }
    }
  }
}

TEST(QuantizedSteps, undoes_a_step_with_every_bit) {
  HostResidual state(DataType::kFloat32, 300);
  Rng rng(4);
  const std::vector<ShardRange> parts{{0, 300}};
  Buffer out(quantized_bytes(300, 8));
  const Buffer good = tensor_of(DataType::kFloat32, normal_values(rng, 300));
  ASSERT_TRUE(*state.quantize(good.data(), parts, {}, Compressor::kInt8, out));
  EXPECT_TRUE(state.is_pending());
  EXPECT_EQ(state.quantize(good.data(), parts, {}, Compressor::kInt8, out).status().code(),
            ErrorCode::kInternal);
  state.commit();
  const Buffer before = saved(state);
  std::vector<double> values = normal_values(rng, 300);
  const std::vector<std::span<const std::byte>> sums{out, out};
  const Buffer shard = tensor_of(DataType::kFloat32, values);
  ASSERT_TRUE(*state.quantize(shard.data(), parts, 0, Compressor::kInt8, {}));
  Buffer again(out.size());
  ASSERT_TRUE(*state.quantize_sum(sums, parts[0], Compressor::kInt8, again));
  state.rollback();
  EXPECT_EQ(saved(state), before);
  values[7] = kNan;
  ASSERT_FALSE(*state.quantize(
      tensor_of(DataType::kFloat32, values).data(), parts, {}, Compressor::kInt8, out));
  state.commit();  // Not finite: nothing is committed.
  EXPECT_EQ(saved(state), before);
  EXPECT_EQ(state.quantize_sum(sums, parts[0], Compressor::kInt8, again).status().code(),
            ErrorCode::kInternal);
}

TEST(QuantizedSteps, sends_zeros_for_a_rank_that_has_joined) {
  HostResidual state(DataType::kBfloat16, 200);
  const std::vector<ShardRange> parts{{0, 200}};
  Buffer out(quantized_bytes(200, 4), std::byte{1});
  ASSERT_TRUE(*state.quantize(nullptr, parts, {}, Compressor::kInt4, out));
  EXPECT_EQ(out, Buffer(out.size()));
}

}  // namespace
}  // namespace lightcc::quantized_steps_test
