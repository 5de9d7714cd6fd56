// The plane of CUDA memory whose groups are NCCL's. Not yet run on hardware.
#pragma once

#include <memory>

#include "lightcc/base/export.hpp"
#include "lightcc/engine/staged/staging.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc::cuda {

/// Makes no plane where Knobs::gpu_operations is "host" or "mpi", or is "auto" and no rank of the
/// world has GPUs. Nor does it where a rank lacks an NCCL or a GPU of its own; then rank 0 logs
/// why. A rank's GPU is the only one that it has, or the one whose number is its local rank.
/// `staging` allocates outputs and runs what NCCL does not. Errors of the maker: kInvalidArgument,
/// "nccl" is asked for and the versions differ; kSystem.
LIGHTCC_EXPORT PlaneMaker make_nccl_plane(std::shared_ptr<Staging> staging);

}  // namespace lightcc::cuda
