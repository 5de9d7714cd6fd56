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
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lightcc/compression/quantize.hpp"

#include "compression/fp8_testing.hpp"
#include "compression/topk_testing.hpp"

namespace lightcc::testing {

inline constexpr std::array<Compressor, 4> kCompressors = {
    Compressor::kInt8, Compressor::kInt4, Compressor::kSign, Compressor::kFp8};

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
inline double levels_of(Compressor compressor) {
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

inline Reference reference(DataType dtype, const std::vector<double>& acc, Compressor compressor) {
  return is_wide(dtype) ? reference<double>(acc, compressor) : reference<float>(acc, compressor);
}

inline int code_in(const Buffer& part, std::size_t elements, Compressor compressor, std::size_t i) {
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

}  // namespace lightcc::testing
