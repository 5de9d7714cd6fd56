// The parts of a block go to the host, and back. Many small tensors of a GPU do in one copy: a
// kernel packs them into memory of the GPU beside them, or unpacks them from there.
//
// Thread: one, with the context current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/staged/staging.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"

namespace lightcc::cuda {

/// The end of a part on its GPU that is copied, with kPack to the host; null: nothing is.
inline const std::byte* gpu_end(const StagedPart& part, Copying direction) {
  return direction == Copying::kPack ? part.from : part.to;
}

class Packer {
 public:
  /// Without kernels, or where there is no memory later, nothing is packed. Both outlive it.
  Packer(const Driver& driver, const KernelTable* kernels) : driver_(driver), kernels_(kernels) {}

  /// Copies the parts of one GPU between there and the block's host memory, in the order of
  /// `stream`. Errors: kSystem.
  Status copy(const StagedBlock& block,
              std::int32_t device,
              Copying direction,
              StreamHandle* stream);

 private:
  /// Parts one after another in their block, with little between them.
  using Run = std::vector<const StagedPart*>;

  Status copy_run(const StagedBlock& block,
                  const Run& run,
                  Copying direction,
                  StreamHandle* stream);
  Status copy_packed(const StagedBlock& block,
                     const Run& run,
                     Address bucket,
                     Copying direction,
                     StreamHandle* stream);
  Result<Address> memory(StreamHandle* stream);

  const Driver& driver_;
  const KernelTable* kernels_;
  std::shared_ptr<std::byte> memory_;  // Fits the largest run.
};

}  // namespace lightcc::cuda
