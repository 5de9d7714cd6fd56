// Many small tensors of a GPU go to the host, and back, in one copy: a kernel packs them into
// memory of the GPU beside them, or unpacks them from there.
//
// Thread: one, with the context current.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/staged/staging.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"

namespace lightcc::cuda {

/// Parts of a block, one after another in it, that travel in one copy.
using PackedRun = std::span<const StagedPart* const>;

class Packer {
 public:
  /// Without kernels, or where there is no memory later, nothing is packed. Both outlive it.
  Packer(const Driver& driver, const KernelTable* kernels) : driver_(driver), kernels_(kernels) {}

  /// Whether there are enough parts for a run to be worth its launch. The copies below are then in
  /// the order of the same `stream`.
  bool packs(PackedRun run, StreamHandle* stream);
  /// Whether `part` can travel with those of `run`, which it follows in their block. Both are of
  /// one GPU.
  static bool may_follow(PackedRun run, const StagedPart& part);

  /// Copies every `from` of a run of `block` to its host memory, in the order of `stream`.
  Status copy_to_host(const StagedBlock& block, PackedRun run, StreamHandle* stream);
  /// Copies from there to every `to`.
  Status copy_to_device(const StagedBlock& block, PackedRun run, StreamHandle* stream);

 private:
  Status launch_on(PackedRun run, Copying direction, StreamHandle* stream);
  Result<Address> memory(StreamHandle* stream);

  const Driver& driver_;
  const KernelTable* kernels_;
  std::shared_ptr<std::byte> memory_;  // Fits the largest run.
};

}  // namespace lightcc::cuda
