// Tensors that others describe in DLPack's words, as far as the engine takes them.
#pragma once

#include <cstdint>
#include <optional>

#include "dlpack.hpp"
#include "dlpack_export.hpp"

namespace lightcc::bindings::dlpack {

/// The engine's dtype of DLPack's word; none: the engine has no such.
constexpr std::optional<lightcc::DataType> known_type(DataType dtype) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto known = static_cast<lightcc::DataType>(i);
    if (type_of(known) == dtype) {
      return known;
    }
  }
  return std::nullopt;
}

/// Whether the elements of a shape lie one after another. `strides`: in units of `step`, or null.
inline bool is_contiguous(std::int32_t dimensions,
                          const std::int64_t* shape,
                          const std::int64_t* strides,
                          std::int64_t step = 1) {
  if (strides == nullptr) {
    return true;
  }
  bool contiguous = true;
  std::int64_t expected = step;
  for (std::int32_t i = dimensions - 1; i >= 0; --i) {
    const std::int64_t extent = shape[i];
    if (extent == 0) {
      return true;
    }
    contiguous = contiguous && (extent == 1 || strides[i] == expected);
    expected *= extent;
  }
  return contiguous;
}

}  // namespace lightcc::bindings::dlpack
