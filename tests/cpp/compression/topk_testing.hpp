// Tensors of every dtype for the tests of top-k compression, and a reference that is obviously
// right: sort, take, keep the rest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"
#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/topk/topk_list.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

namespace lightcc::testing {

using Buffer = std::vector<std::byte>;

/// Each below 256.
inline Buffer bytes_of(const std::vector<unsigned>& numbers) {
  Buffer bytes;
  for (const unsigned number : numbers) {
    bytes.push_back(static_cast<std::byte>(number));
  }
  return bytes;
}

inline constexpr DataType kFloatTypes[] = {
    DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64};

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> found;
  for (const SimdLevel level : {SimdLevel::kPlain, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= detect_simd_level()) {
      found.push_back(level);
    }
  }
  return found;
}

inline double get(DataType dtype, const std::byte* from, std::size_t i) {
  const auto at = [&](auto value) {
    std::memcpy(&value, from + i * sizeof(value), sizeof(value));
    return value;
  };
  switch (dtype) {
    case DataType::kFloat16:
      return half_to_float(at(std::uint16_t{}));
    case DataType::kBfloat16:
      return bfloat16_to_float(at(std::uint16_t{}));
    case DataType::kFloat64:
      return at(double{});
    default:
      return at(float{});
  }
}

inline void put(DataType dtype, std::byte* to, std::size_t i, double value) {
  const auto at = [&](auto element) {
    std::memcpy(to + i * sizeof(element), &element, sizeof(element));
  };
  switch (dtype) {
    case DataType::kFloat16:
      return at(float_to_half(static_cast<float>(value)));
    case DataType::kBfloat16:
      return at(float_to_bfloat16(static_cast<float>(value)));
    case DataType::kFloat64:
      return at(value);
    default:
      return at(static_cast<float>(value));
  }
}

inline Buffer tensor_of(DataType dtype, const std::vector<double>& values) {
  Buffer tensor(values.size() * element_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    put(dtype, tensor.data(), i, values[i]);
  }
  return tensor;
}

/// About normal (Irwin and Hall), mean 0, the given deviation.
inline double draw_normal(Rng& rng, double deviation = 1.0) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) {
    sum += rng.unit();
  }
  return sum * deviation;
}

inline std::vector<double> normal_values(Rng& rng, std::size_t count, double deviation = 1.0) {
  std::vector<double> values(count);
  for (double& value : values) {
    value = draw_normal(rng, deviation);
  }
  return values;
}

/// a * b + c as the type computes it.
inline double multiply_add(DataType dtype, double a, double b, double c) {
  if (dtype == DataType::kFloat64) {
    return a * b + c;
  }
  const float product = static_cast<float>(a) * static_cast<float>(b);
  return product + static_cast<float>(c);
}

struct Entry {
  std::size_t index = 0;
  double value = 0.0;
  bool operator==(const Entry&) const = default;
};

inline std::vector<Entry> entries_of(const TopkListView& list) {
  std::vector<Entry> entries;
  std::size_t entry = 0;
  for (std::size_t block = 0; block < list.num_blocks; ++block) {
    for (std::size_t i = 0; i < list.block_count(block); ++i, ++entry) {
      entries.push_back({list.index(block, entry), list.value(block, entry)});
    }
  }
  return entries;
}

/// The k elements that are largest in magnitude, ties to the lower index, in index order.
inline std::vector<Entry> largest(const std::vector<double>& values, std::size_t k) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const double first = std::abs(values[a]);
    const double second = std::abs(values[b]);
    return first != second ? first > second : a < b;
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  std::vector<Entry> entries;
  for (const std::size_t i : order) {
    entries.push_back({i, values[i]});
  }
  return entries;
}

/// A step's list, and the state's copy of itself after it.
struct StepResult {
  TopkOutcome outcome;
  Buffer list;
};

/// compress() without commit.
inline StepResult compress(HostResidual& state, const Buffer& shard, const TopkRequest& request) {
  StepResult result;
  const TopkFormat format{.dtype = state.dtype(), .fp16 = request.fp16};
  result.list.resize(max_list_bytes(state.numel(), request.capacity, format));
  const auto outcome = state.compress(shard.data(), request, result.list);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  if (outcome.ok()) {
    result.outcome = *outcome;
    result.list.resize(outcome->bytes);
  }
  return result;
}

inline TopkListView parsed(const Buffer& list, std::size_t elements, const TopkFormat& format) {
  const auto view = parse_list(list, elements, format);
  EXPECT_TRUE(view.ok()) << view.status().message();
  return view.ok() ? *view : TopkListView{};
}

inline std::vector<double> residual_of(const HostResidual& state) {
  std::vector<double> values(state.numel());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = state.residual_at(i);
  }
  return values;
}

inline Buffer saved(const HostResidual& state) {
  Buffer bytes;
  const Status status = state.save(bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

/// shard + residual.
inline std::vector<double> accumulated(const HostResidual& state, const Buffer& shard) {
  std::vector<double> acc(state.numel());
  for (std::size_t i = 0; i < acc.size(); ++i) {
    acc[i] =
        multiply_add(state.dtype(), get(state.dtype(), shard.data(), i), 1.0, state.residual_at(i));
  }
  return acc;
}

/// The value's nearest in the dtype.
inline double rounded(DataType dtype, double value) {
  std::byte element[8];
  put(dtype, element, 0, value);
  return get(dtype, element, 0);
}

/// Sent + residual must be acc in every element, exactly.
inline void expect_nothing_is_lost(const std::vector<double>& acc,
                                   const std::vector<Entry>& sent,
                                   const std::vector<double>& residual) {
  std::vector<double> sum = residual;
  for (const Entry& entry : sent) {
    sum[entry.index] += entry.value;
  }
  for (std::size_t i = 0; i < acc.size(); ++i) {
    ASSERT_EQ(sum[i], acc[i]) << "element " << i;
  }
}

inline TopkRequest exactly(std::size_t k, SimdLevel level) {
  return {.k = k, .capacity = k, .exact = true, .level = level};
}

inline TopkRequest about(std::size_t k, std::size_t numel, SimdLevel level) {
  return {.k = k, .capacity = topk_capacity(k, numel), .level = level};
}

}  // namespace lightcc::testing
