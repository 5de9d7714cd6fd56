// E4M3 as the OCP 8-bit Floating Point Specification has it, one number at a time: what kernels are
// held to.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lightcc::testing {

inline constexpr unsigned kFp8Sign = 0x80U;
inline constexpr unsigned kFp8Nan = 0x7fU;

/// The value of a code: sign, 4 bits of exponent with a bias of 7, 3 bits of fraction.
inline double fp8_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 3U & 15U);
  const double fraction = static_cast<double>(code & 7U) / 8.0;
  double magnitude = std::numeric_limits<double>::quiet_NaN();
  if ((code & kFp8Nan) != kFp8Nan) {
    magnitude = exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1.0 + fraction, exponent - 7);
  }
  return (code & kFp8Sign) == 0 ? magnitude : -magnitude;
}

/// Codes 0 to 126 in their order, which is that of their values: 0 to 448.
inline const std::array<double, 127> kFp8Values = [] {
  std::array<double, 127> values{};
  for (unsigned code = 0; code < values.size(); ++code) {
    values[code] = fp8_value(code);
  }
  return values;
}();

/// The code nearest to `x`, of two that are as near the even one; of what is larger, the largest.
inline unsigned fp8_code(double x) {
  const double magnitude = std::min(std::abs(x), kFp8Values.back());
  const auto above =
      static_cast<unsigned>(std::ranges::lower_bound(kFp8Values, magnitude) - kFp8Values.begin());
  unsigned code = above;
  if (kFp8Values[above] != magnitude) {
    const double up = kFp8Values[above] - magnitude;
    const double down = magnitude - kFp8Values[above - 1];
    code = down < up || (down == up && above % 2 == 1) ? above - 1 : above;
  }
  return std::signbit(x) ? code | kFp8Sign : code;
}

}  // namespace lightcc::testing
