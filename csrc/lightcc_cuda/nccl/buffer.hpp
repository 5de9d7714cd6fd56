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

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/nccl/library.hpp"

namespace lightcc::cuda {

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

  /// Nothing on the GPU uses it, and `comm` is neither finalized nor aborted. Errors: of NCCL.
  Status deregister(NcclHandle* comm);

 private:
  NcclBuffer(const NcclLibrary& library, const Driver& driver, std::byte* memory, std::size_t half)
      : library_(library), driver_(driver), memory_(memory), half_bytes_(half) {}

  const NcclLibrary library_;
  const Driver& driver_;
  std::byte* memory_;
  std::size_t half_bytes_;
  void* registration_ = nullptr;
};

}  // namespace lightcc::cuda
