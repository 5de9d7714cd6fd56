// What the parts of TopkSite share: how they lay out memory, and what kernels are named.
#pragma once

#include <cstddef>
#include <string>

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"

namespace lightcc::cuda::detail {

/// In a shard's memory, behind its progress.
inline constexpr std::size_t kLanesAt = 256;
static_assert(sizeof(TopkProgress) <= kLanesAt);
static_assert(static_cast<u32>(ElementType::kFloat16) == static_cast<u32>(DataType::kFloat16) &&
              static_cast<u32>(ElementType::kFloat32) == static_cast<u32>(DataType::kFloat32) &&
              static_cast<u32>(ElementType::kBfloat16) == static_cast<u32>(DataType::kBfloat16));

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT: of the GPU, never read here
}

constexpr std::size_t up_to(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Arrays one after another in memory from an address on, each aligned to 16 bytes. Laid out from
/// address 0, they say how much memory they need.
struct Arena {
  Address end = 0;

  Address add(std::size_t bytes) {
    const Address begin = end;
    end += up_to(bytes, 16);
    return begin;
  }
  template <typename T>
  T* array(std::size_t count) {
    return at<T>(add(count * sizeof(T)));
  }
};

/// Bytes of one of a pair of arrays, for kernels that read 16 bytes at a time.
inline std::size_t lanes_bytes(const TopkShard& shard) {
  return up_to(shard.lane_bytes(), 256);
}

inline std::string of_elements(const char* kernel, DataType dtype) {
  return std::string(kernel) + (dtype == DataType::kFloat16    ? "_f16"
                                : dtype == DataType::kBfloat16 ? "_bf16"
                                                               : "_f32");
}

/// What a row says of a shard, whatever the step.
inline TopkTensor row_of(const TopkShard& shard) {
  const Address memory = gpu_address(shard.memory.get());
  TopkTensor row{};
  row.numel = shard.numel;
  row.dtype = static_cast<u32>(shard.dtype);
  row.progress = at<TopkProgress>(memory);
  row.forecast = {shard.forecast.threshold, shard.forecast.ideal, shard.forecast.k};
  row.step = shard.step;
  row.current = shard.current;
  for (std::size_t i = 0; i < 2; ++i) {
    row.residual[i] = at<u8>(memory + kLanesAt + i * lanes_bytes(shard));
  }
  return row;
}

}  // namespace lightcc::cuda::detail
