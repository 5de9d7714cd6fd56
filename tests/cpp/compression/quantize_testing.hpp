// Quantised parts one element at a time, as kernels/quantize_blocks.hpp has it in words: what every
// SIMD level is held to.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "lightcc/compression/quantized/quantize.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::testing {

inline constexpr std::array<Compressor, 2> kCompressors = {Compressor::kInt8, Compressor::kInt4};

inline bool is_wide(DataType dtype) {
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

inline Buffer lanes_of(DataType dtype, const std::vector<double>& values) {
  return is_wide(dtype) ? lanes_of<double>(values) : lanes_of<float>(values);
}

inline double lane(DataType dtype, const Buffer& lanes, std::size_t i) {
  return get(is_wide(dtype) ? DataType::kFloat64 : DataType::kFloat32, lanes.data(), i);
}

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

/// What a code can be at most.
inline double levels_of(Compressor compressor) {
  return compressor == Compressor::kInt8 ? 127.0 : 7.0;
}

/// The code of an element whose block's scale is not 0.
template <typename Lane>
Lane reference_code(Lane x, Lane scale, Lane levels) {
  return std::nearbyint(std::clamp<Lane>(x * (Lane{1} / scale), -levels, levels));
}

template <typename Lane>
Reference reference(const std::vector<double>& acc, Compressor compressor) {
  using Key = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;
  constexpr unsigned kShift = sizeof(Lane) == 4 ? 16 : 48;
  const auto levels = static_cast<Lane>(levels_of(compressor));
  Reference result;
  for (std::size_t begin = 0; begin < acc.size(); begin += kQuantizedBlockElems) {
    const std::size_t end = std::min(begin + kQuantizedBlockElems, acc.size());
    Lane peak = 0;
    for (std::size_t i = begin; i < end; ++i) {
      peak = std::max(peak, std::abs(static_cast<Lane>(acc[i])));
    }
    result.scales.push_back(reference_scale(peak / levels, levels));
    const Lane scale = std::bit_cast<Lane>(Key{result.scales.back()} << kShift);
    for (std::size_t i = begin; i < end; ++i) {
      const auto x = static_cast<Lane>(acc[i]);
      const Lane code = scale == 0 ? Lane{0} : reference_code(x, scale, levels);
      result.codes.push_back(static_cast<int>(code));
      result.sent.push_back(scale * code);
      result.left.push_back(x - scale * code);
    }
  }
  return result;
}

inline Reference reference(DataType dtype, const std::vector<double>& acc, Compressor compressor) {
  return is_wide(dtype) ? reference<double>(acc, compressor) : reference<float>(acc, compressor);
}

inline int code_in(const Buffer& part, std::size_t elements, Compressor compressor, std::size_t i) {
  const std::size_t scales = (elements + kQuantizedBlockElems - 1) / kQuantizedBlockElems * 2;
  if (compressor == Compressor::kInt8) {
    return static_cast<std::int8_t>(part[scales + i]);
  }
  const std::size_t block = i / kQuantizedBlockElems;
  const std::size_t offset = i % kQuantizedBlockElems;
  const auto byte = std::to_integer<unsigned>(part[scales + block * 64 + offset % 64]);
  const int code = static_cast<int>(offset < 64 ? byte & 15U : byte >> 4);
  return code < 8 ? code : code - 16;
}

}  // namespace lightcc::testing
