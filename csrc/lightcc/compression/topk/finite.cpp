#include "lightcc/compression/topk/finite.hpp"

#include <cstdint>

#include "lightcc/compression/kernels/float_types.hpp"

namespace lightcc {
namespace {

/// An exponent of all ones; one loop without branches, so that compilers vectorise it.
template <typename Bits>
bool none_has(const std::byte* data, std::size_t elements, Bits exponent) {
  bool found = false;
  for (std::size_t i = 0; i < elements; ++i) {
    found |= (detail::load_as<Bits>(data + i * sizeof(Bits)) & exponent) == exponent;
  }
  return !found;
}

}  // namespace

bool is_all_finite(const std::byte* data, std::size_t elements, DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return none_has<std::uint16_t>(data, elements, 0x7c00);
    case DataType::kBfloat16:
      return none_has<std::uint16_t>(data, elements, 0x7f80);
    case DataType::kFloat64:
      return none_has<std::uint64_t>(data, elements, 0x7ff0000000000000);
    default:
      return none_has<std::uint32_t>(data, elements, 0x7f800000);
  }
}

}  // namespace lightcc
