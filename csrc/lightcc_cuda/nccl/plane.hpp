// The plane of CUDA memory whose groups are NCCL's. Not yet run on hardware.
#pragma once

#include <functional>
#include <memory>

#include "lightcc/base/export.hpp"
#include "lightcc/engine/staged/staging.hpp"
#include "lightcc/engine/world.hpp"

#include "lightcc_cuda/driver/gpus.hpp"

namespace lightcc::cuda {

/// find_gpus(), or what remembers its answer. Thread: any.
using GpuFinder = std::function<Result<Gpus>()>;

/// Makes no plane where Knobs::gpu_operations is "host" or "mpi", or is "auto" and no rank of the
/// world has GPUs. Nor does it where a rank lacks an NCCL or a GPU of its own, or where it is
/// "auto" and NCCL does not open on all ranks; then rank 0 logs why. A rank's GPU is the only one
/// that it has, or the one whose number is its local rank. `staging` allocates outputs and runs
/// what NCCL does not. Errors of the maker: kInvalidArgument, "nccl" is asked for and the versions
/// differ; kSystem.
LIGHTCC_EXPORT PlaneMaker make_nccl_plane(std::shared_ptr<Staging> staging,
                                          GpuFinder find = find_gpus);

}  // namespace lightcc::cuda
