// Whether values are numbers.
#pragma once

#include <cstddef>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Whether none of `elements` elements of a floating-point `dtype` is a NaN or an infinity. `data`
/// may have any alignment.
bool is_all_finite(const std::byte* data, std::size_t elements, DataType dtype);

}  // namespace lightcc
