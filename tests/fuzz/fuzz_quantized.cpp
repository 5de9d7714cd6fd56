// check_quantized() against arbitrary bytes; what it accepts must decode to the same bits at every
// SIMD level, and so must its sum with itself, quantised again.
//
// Input: dtype and compressor (u8), elements (u32, at most 5000), then the part.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/quantized/quantize.hpp"

namespace {

using lightcc::SimdLevel;

constexpr std::size_t kMaxElements = 5000;

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

struct Outcome {
  std::vector<std::byte> dense;
  std::vector<std::byte> residual;
  std::vector<std::byte> sum;
  bool finite = false;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_at(SimdLevel level,
                   std::span<const std::byte> part,
                   std::size_t elements,
                   const lightcc::QuantizedFormat& format) {
  const std::size_t lane_bytes = format.dtype == lightcc::DataType::kFloat64 ? 8 : 4;
  Outcome outcome{.dense = std::vector<std::byte>(elements * element_size(format.dtype)),
                  .residual = std::vector<std::byte>(elements * lane_bytes),
                  .sum = std::vector<std::byte>(part.size())};
  const std::array<std::span<const std::byte>, 2> parts{part, part};
  lightcc::dequantize(parts, elements, format, 0.5, outcome.dense.data(), level);
  outcome.finite =
      lightcc::quantize_sum(parts, elements, format, outcome.residual.data(), outcome.sum, level);
  if (!outcome.finite) {
    outcome.residual.clear();  // Means nothing.
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::array kTypes = {lightcc::DataType::kFloat16,
                                 lightcc::DataType::kBfloat16,
                                 lightcc::DataType::kFloat32,
                                 lightcc::DataType::kFloat64};
  lightcc::ByteReader reader(std::as_bytes(std::span(data, size)));
  const auto kind = reader.number<std::uint8_t>();
  const std::size_t elements = reader.number<std::uint32_t>() % (kMaxElements + 1);
  if (!reader.ok()) {
    return 0;
  }
  // An allocation of just this size, for AddressSanitizer to watch.
  const auto rest = reader.raw(reader.remaining());
  const auto bytes = std::make_unique<std::byte[]>(rest.size());
  std::ranges::copy(rest, bytes.get());
  const std::span<const std::byte> part(bytes.get(), rest.size());
  constexpr std::array kCompressors = {lightcc::Compressor::kInt8, lightcc::Compressor::kInt4};
  const lightcc::QuantizedFormat format{.dtype = kTypes[kind % 4],
                                        .compressor = kCompressors[kind / 4 % 2]};
  const auto non_finite = lightcc::check_quantized(part, elements, format);
  if (!non_finite.ok() || *non_finite) {
    return 0;
  }
  const Outcome plain = outcome_at(SimdLevel::kPlain, part, elements, format);
  require(outcome_at(SimdLevel::kAvx2, part, elements, format) == plain);
  require(outcome_at(SimdLevel::kAvx512, part, elements, format) == plain);
  const auto again = lightcc::check_quantized(plain.sum, elements, format);
  require(again.ok() && *again == !plain.finite);
  return 0;
}
