// Compression's kernels for memory of one GPU: top-k, where lists travel.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"

#include "lightcc_cuda/staging/launcher.hpp"

namespace lightcc::cuda {

/// Selects on the stream of copies to the host, and merges on that of copies back, so that lists
/// are merged while others are made. Not yet run on hardware.
///
/// When the GPU has no memory for residuals, or the driver does not load the kernels, it
/// objects to everything from then on.
class CudaTopkKernels final : public CompressionKernels {
 public:
  CudaTopkKernels(std::shared_ptr<Launcher> to_host,
                  std::shared_ptr<Launcher> to_device,
                  int device);

  std::string why_unsupported(std::size_t numel, std::size_t blocks) const override
      LIGHTCC_EXCLUDES(mutex_);
  // Both block while the GPU gives memory.
  Result<std::unique_ptr<ShardResidual>> make_state(DataType dtype, std::size_t numel) override;
  Result<std::unique_ptr<ShardResidual>> load_state(std::span<const std::byte> saved) override;
  /// Null: there is none. Blocks.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  // All steps, and all sums, must have one dtype. Else: kInvalidArgument.
  Result<std::unique_ptr<Work>> compress(std::span<const TopkStep> steps) override;
  Result<std::unique_ptr<Work>> merge(std::span<const TopkSum> sums) override;

 private:
  Result<std::unique_ptr<ShardResidual>> state_with(
      std::shared_ptr<TopkShard> shard,
      const std::function<Status(const GpuSite&, TopkShard&)>& begin);

  std::shared_ptr<Launcher> to_host_;
  std::shared_ptr<Launcher> to_device_;
  const int device_;
  mutable Mutex mutex_;
  std::string objection_ LIGHTCC_GUARDED_BY(mutex_);  // To everything.
};

}  // namespace lightcc::cuda
