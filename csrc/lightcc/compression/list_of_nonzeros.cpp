// Dense elements as a list, bit for bit.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "lightcc/compression/float_types.hpp"
#include "lightcc/compression/list_writer.hpp"
#include "lightcc/compression/topk_list.hpp"

namespace lightcc {
namespace {

using detail::load_as;

template <typename Type>
struct Nonzeros {
  using Wire = Type::Wire;
  std::size_t count = 0;
  bool non_finite = false;
};

/// The bits of a value: zero only for 0.0, not for -0.0.
template <typename Wire>
bool has_bits(Wire wire) {
  return std::bit_cast<std::conditional_t<
             sizeof(Wire) == 2,
             std::uint16_t,
             std::conditional_t<sizeof(Wire) == 4, std::uint32_t, std::uint64_t>>>(wire) != 0;
}

template <typename Type>
Nonzeros<Type> count_nonzeros(const std::byte* dense, std::size_t elements) {
  using Wire = Type::Wire;
  Nonzeros<Type> found;
  unsigned bad = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    const Wire wire = load_as<Wire>(dense + i * sizeof(Wire));
    found.count += has_bits(wire) ? 1U : 0U;
    bad |= detail::magnitude_key(Type::decode(wire)) >= detail::kInfinityKey<typename Type::Lane>
               ? 1U
               : 0U;
  }
  found.non_finite = bad != 0;
  if (found.non_finite) {
    found.count = 0;
  }
  return found;
}

template <typename Type>
void write_nonzeros(const std::byte* dense,
                    std::size_t elements,
                    std::size_t phase,
                    detail::ListWriter& writer) {
  using Wire = Type::Wire;
  std::size_t element = 0;
  while (element < elements) {
    const std::size_t first_offset = (phase + element) % kTopkBlockElems;
    const std::size_t end = std::min(elements, element + kTopkBlockElems - first_offset);
    std::byte* offsets = writer.offsets();
    std::byte* values = writer.values();
    std::size_t count = 0;
    for (; element < end; ++element) {
      const Wire wire = load_as<Wire>(dense + element * sizeof(Wire));
      if (has_bits(wire)) {
        detail::store_as(offsets + count * sizeof(std::uint16_t),
                         static_cast<std::uint16_t>((phase + element) % kTopkBlockElems));
        detail::store_as(values + count * sizeof(Wire), wire);
        ++count;
      }
    }
    writer.finish_block(count);
  }
}

}  // namespace

Result<std::size_t> write_list_of_nonzeros(const std::byte* dense,
                                           std::size_t elements,
                                           DataType dtype,
                                           std::span<std::byte> out,
                                           std::size_t phase) {
  return detail::with_float_type(dtype, [&](auto type) -> Result<std::size_t> {
    using Type = decltype(type);
    const Nonzeros<Type> found = count_nonzeros<Type>(dense, elements);
    const TopkFormat format{.dtype = dtype};
    const std::size_t needed = list_bytes(elements, found.count, format, phase);
    if (out.size() < needed) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a list of the %zu elements that are not zero takes %zu bytes, there is "
                        "room for %zu",
                        found.count,
                        needed,
                        out.size());
    }
    detail::ListWriter writer(out, elements, found.count, format, phase);
    if (found.non_finite) {
      return writer.finish_non_finite();
    }
    write_nonzeros<Type>(dense, elements, phase, writer);
    return writer.finish();
  });
}

std::size_t list_of_nonzeros_bytes(const std::byte* dense,
                                   std::size_t elements,
                                   DataType dtype,
                                   std::size_t phase) {
  return detail::with_float_type(dtype, [&](auto type) {
    const auto found = count_nonzeros<decltype(type)>(dense, elements);
    return list_bytes(elements, found.count, TopkFormat{.dtype = dtype}, phase);
  });
}

}  // namespace lightcc
