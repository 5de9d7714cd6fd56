// Compression's kernels for memory of one GPU: top-k, where lists travel.
#pragma once

#include <memory>

#include "lightcc/compression/residual/compression_kernels.hpp"

#include "lightcc_cuda/staging/launcher.hpp"

namespace lightcc::cuda {

/// Selects on the stream of copies to the host, and merges on that of copies back, so that lists
/// are merged while others are made. Not yet run on hardware.
///
/// All steps, and all sums, must have one dtype; else: kInvalidArgument. States and memory block
/// while the GPU gives memory. When it has none for residuals, or the driver does not load the
/// kernels, everything is objected to from then on.
std::unique_ptr<CompressionKernels> make_topk_kernels(std::shared_ptr<Launcher> to_host,
                                                      std::shared_ptr<Launcher> to_device,
                                                      int device);

}  // namespace lightcc::cuda
