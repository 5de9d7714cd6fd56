// Compression's kernels for host memory: the CPU's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/topk_kernels.hpp"

namespace lightcc {

/// HostTopkKernels::make_state() and load_state(), for shards without elements of other planes.
LIGHTCC_EXPORT Result<std::unique_ptr<TopkShardState>> make_host_state(DataType dtype,
                                                                       std::size_t numel,
                                                                       SimdLevel simd);
LIGHTCC_EXPORT Result<std::unique_ptr<TopkShardState>> load_host_state(
    std::span<const std::byte> saved, SimdLevel simd);

/// Everything is done at once.
class HostTopkKernels final : public TopkKernels {
 public:
  explicit HostTopkKernels(SimdLevel simd) : simd_(simd) {}

  Result<std::unique_ptr<TopkShardState>> make_state(DataType dtype, std::size_t numel) override;
  Result<std::unique_ptr<TopkShardState>> load_state(std::span<const std::byte> saved) override;
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  Result<std::unique_ptr<Work>> merge(std::span<const TopkListView> lists,
                                      std::byte* out,
                                      std::size_t elements,
                                      DataType dtype,
                                      double postscale) override;
  Status dequantize(std::span<const std::span<const std::byte>> parts,
                    std::size_t elements,
                    const QuantizedFormat& format,
                    double factor,
                    std::byte* out) override;
  Result<std::unique_ptr<Work>> check_finite(const std::byte* data,
                                             std::size_t elements,
                                             DataType dtype,
                                             bool& non_finite) override;

 private:
  SimdLevel simd_;
};

}  // namespace lightcc
