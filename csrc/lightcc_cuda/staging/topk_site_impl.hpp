// What the parts of TopkSite share: how they lay out memory, and what kernels are named.
#pragma once

#include <cstddef>
#include <string>

#include "lightcc_cuda/staging/topk_site.hpp"

namespace lightcc::cuda::detail {

/// In a shard's memory, behind its progress.
inline constexpr std::size_t kLanesAt = 256;
static_assert(sizeof(TopkProgress) <= kLanesAt);

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT: of the GPU, never read here
}

constexpr std::size_t up_to(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Where things lie in memory that is taken all at once, each aligned to 16 bytes.
class Arena {
 public:
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = bytes_;
    bytes_ = up_to(bytes_ + bytes, 16);
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Bytes of one of a pair of arrays, for kernels that read 16 bytes at a time.
inline std::size_t lanes_bytes(const TopkShard& shard) {
  return up_to(shard.numel * shard.lane_bytes(), 256);
}

inline const char* suffix_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return "f64";
    case DataType::kFloat16:
      return "f16";
    case DataType::kBfloat16:
      return "bf16";
    default:
      return "f32";
  }
}

inline std::string of_elements(const char* kernel, DataType dtype) {
  return std::string("lightcc_") + kernel + '_' + suffix_of(dtype);
}
inline std::string of_lanes(const char* kernel, DataType dtype) {
  return std::string("lightcc_") + kernel + (dtype == DataType::kFloat64 ? "_f64" : "_f32");
}

inline lightcc::detail::TopkForecast forecast_of(const TopkForecastBits& bits) {
  return {.threshold = bits.threshold, .ideal = bits.ideal, .k = bits.k};
}

/// What a row says of a shard, whatever the step.
inline TopkTensor row_of(const TopkShard& shard) {
  const Address memory = gpu_address(shard.memory.get());
  TopkTensor row{};
  row.numel = shard.numel;
  row.dtype = static_cast<u32>(shard.dtype);
  row.progress = at<TopkProgress>(memory);
  for (std::size_t i = 0; i < 2; ++i) {
    row.residual[i] = at<u8>(memory + kLanesAt + i * lanes_bytes(shard));
  }
  return row;
}

}  // namespace lightcc::cuda::detail
