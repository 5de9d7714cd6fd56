// How the fake NCCL combines elements: in rank order, in the type's own precision or float.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lightcc/base/half.hpp"

#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda::fake {

inline std::size_t size_of(NcclType type) {
  static constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

/// Integers wrap around, as those of a GPU do: gaps between packed tensors hold anything.
template <typename T>
T combine(T one, T other, NcclOp op) {
  if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
    if (op != kNcclMax && op != kNcclMin) {
      using Wrapping = std::make_unsigned_t<T>;
      return static_cast<T>(combine(static_cast<Wrapping>(one), static_cast<Wrapping>(other), op));
    }
  }
  switch (op) {
    case kNcclProduct:
      return static_cast<T>(one * other);
    case kNcclMax:
      return std::max(one, other);
    case kNcclMin:
      return std::min(one, other);
    default:
      return static_cast<T>(one + other);
  }
}

/// `Value` is what is computed in, `load` and `store` convert.
template <typename Stored, typename Value, typename Load, typename Store>
void combine_all(std::byte* out,
                 const std::byte* in,
                 std::size_t count,
                 NcclOp op,
                 double factor,
                 bool is_first,
                 Load load,
                 Store store) {
  for (std::size_t i = 0; i < count; ++i) {
    Stored raw{};
    std::memcpy(&raw, in + i * sizeof(Stored), sizeof(Stored));
    Value value = load(raw);
    if (factor != 1.0) {
      value = combine(value, static_cast<Value>(factor), kNcclProduct);
    }
    if (!is_first) {
      std::memcpy(&raw, out + i * sizeof(Stored), sizeof(Stored));
      value = combine<Value>(load(raw), value, op);
    }
    raw = store(value);
    std::memcpy(out + i * sizeof(Stored), &raw, sizeof(Stored));
  }
}

template <typename T>
void combine_plain(std::byte* out,
                   const std::byte* in,
                   std::size_t count,
                   NcclOp op,
                   double factor,
                   bool is_first) {
  const auto same = [](T value) { return value; };
  combine_all<T, T>(out, in, count, op, factor, is_first, same, same);
}

/// Takes the contribution of one rank in; the first one is where `out` begins.
inline void combine_as(NcclType type,
                       std::byte* out,
                       const std::byte* in,
                       std::size_t count,
                       NcclOp op,
                       double factor,
                       bool is_first) {
  switch (type) {
    case kNcclInt8:
      return combine_plain<std::int8_t>(out, in, count, op, factor, is_first);
    case kNcclUint8:
      return combine_plain<std::uint8_t>(out, in, count, op, factor, is_first);
    case kNcclInt32:
      return combine_plain<std::int32_t>(out, in, count, op, factor, is_first);
    case kNcclInt64:
      return combine_plain<std::int64_t>(out, in, count, op, factor, is_first);
    case kNcclFloat32:
      return combine_plain<float>(out, in, count, op, factor, is_first);
    case kNcclFloat64:
      return combine_plain<double>(out, in, count, op, factor, is_first);
    case kNcclFloat16:
      return combine_all<std::uint16_t, float>(
          out, in, count, op, factor, is_first, half_to_float, float_to_half);
    default:
      return combine_all<std::uint16_t, float>(
          out, in, count, op, factor, is_first, bfloat16_to_float, float_to_bfloat16);
  }
}

}  // namespace lightcc::cuda::fake
