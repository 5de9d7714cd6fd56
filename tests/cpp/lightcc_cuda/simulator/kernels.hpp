// Every kernel, as what the simulator calls.
#pragma once

#include "lightcc_cuda/kernels/all.hpp"

namespace lightcc::cuda {

#define LIGHTCC_DECLARE_BUCKET(name, ...) extern "C" void name(BucketArguments);
#define LIGHTCC_DECLARE_REDUCE(name, ...) extern "C" void name(ReduceArguments);
#define LIGHTCC_DECLARE_FINITE(name, ...) extern "C" void name(FiniteArguments);
#define LIGHTCC_DECLARE_TOPK(name, ...) extern "C" void name(TopkArguments);
#define LIGHTCC_DECLARE_MERGE(name, ...) extern "C" void name(MergeArguments);
LIGHTCC_KERNELS_BY_ARGUMENTS(LIGHTCC_DECLARE_BUCKET,
                             LIGHTCC_DECLARE_REDUCE,
                             LIGHTCC_DECLARE_FINITE,
                             LIGHTCC_DECLARE_TOPK,
                             LIGHTCC_DECLARE_MERGE)

}  // namespace lightcc::cuda
