// Every kernel, as what the simulator calls.
#pragma once

#include "lightcc_cuda/kernels/all.hpp"

namespace lightcc::cuda {

#define LIGHTCC_DECLARE_BUCKET(name, ...) extern "C" void name(BucketArguments);
#define LIGHTCC_DECLARE_TOPK(name, ...) extern "C" void name(TopkArguments);
#define LIGHTCC_DECLARE_MERGE(name, ...) extern "C" void name(MergeArguments);
LIGHTCC_KERNELS_BY_ARGUMENTS(LIGHTCC_DECLARE_BUCKET, LIGHTCC_DECLARE_TOPK, LIGHTCC_DECLARE_MERGE)

}  // namespace lightcc::cuda
