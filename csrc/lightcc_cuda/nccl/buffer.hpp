// Memory of a GPU into which the tensors of a bucket are packed, for NCCL to combine them as one.
//
// It is as old as its communicator's first such bucket, and is registered with that communicator:
// NCCL may then read and write it where it lies, without copies of its own. NCCL leaves undefined
// what happens where some ranks of a call bring registered memory and others do not. So tensors of
// frameworks are never registered. All ranks make the buffer at the same bucket, of the same size,
// and each bucket begins at its head.
//
// Inputs and results have a half each, because NCCL's rings use what is registered only where the
// two differ.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"

#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/nccl/library.hpp"

namespace lightcc::cuda {

/// The tensors of a bucket, none of which is empty.
struct PackedTensors {
  std::vector<TensorSpan> spans;
  std::size_t element_bytes = 4;
};

/// Thread: the launcher's, with the context current. `driver` outlives it.
class NcclBuffer {
 public:
  /// For buckets of up to `bytes` bytes. Not registered where the library cannot, or where NCCL
  /// says that it does not (NCCL_LOCAL_REGISTER=0). Errors: of the driver, of NCCL.
  static Result<std::unique_ptr<NcclBuffer>> make(const NcclLibrary& library,
                                                  const Driver& driver,
                                                  NcclHandle* comm,
                                                  std::size_t bytes);
  NcclBuffer(const NcclBuffer&) = delete;
  NcclBuffer& operator=(const NcclBuffer&) = delete;
  /// The communicator is gone, or it was deregistered.
  ~NcclBuffer();

  /// What was packed.
  std::byte* input() const { return memory_; }
  /// Where the results belong.
  std::byte* result() const { return memory_ + half_bytes_; }

  // In the order of `stream`. By one launch for up to kMaxBucketRows tensors, or by a copy for each
  // where `kernels` is null or it is about few tensors.

  /// Zeros for an input that is null.
  Status pack(const PackedTensors& tensors, const KernelTable* kernels, StreamHandle* stream) const;
  /// Leaves out an output that is null.
  Status unpack(const PackedTensors& tensors,
                const KernelTable* kernels,
                StreamHandle* stream) const;

  /// Nothing on the GPU uses it, and `comm` is neither finalized nor aborted. Errors: of NCCL.
  Status deregister(NcclHandle* comm);

 private:
  NcclBuffer(const NcclLibrary& library, const Driver& driver, std::byte* memory, std::size_t half)
      : library_(library), driver_(driver), memory_(memory), half_bytes_(half) {}

  Status copy_all(const PackedTensors& tensors,
                  bool unpacks,
                  const KernelTable* kernels,
                  StreamHandle* stream) const;
  /// `run`: the first tensor, and the one behind the last.
  Status launch_run(const PackedTensors& tensors,
                    std::pair<std::size_t, std::size_t> run,
                    bool unpacks,
                    std::byte* packed,
                    const KernelTable& kernels,
                    StreamHandle* stream) const;
  Status copy_one(const TensorSpan& span,
                  std::size_t bytes,
                  bool unpacks,
                  std::byte* packed,
                  StreamHandle* stream) const;

  const NcclLibrary library_;
  const Driver& driver_;
  std::byte* memory_;
  std::size_t half_bytes_;
  void* registration_ = nullptr;
};

}  // namespace lightcc::cuda
