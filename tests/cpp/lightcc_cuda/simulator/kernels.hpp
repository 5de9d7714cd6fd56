// Every kernel, as what the simulator calls.
#pragma once

#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/kernels/finite.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/reduce.hpp"
#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda {

#define LIGHTCC_DECLARE_BUCKET(name, ...) extern "C" void name(BucketArguments);
LIGHTCC_COPY_KERNELS(LIGHTCC_DECLARE_BUCKET)
LIGHTCC_CONVERT_KERNELS(LIGHTCC_DECLARE_BUCKET)
#define LIGHTCC_DECLARE_REDUCE(name, ...) extern "C" void name(ReduceArguments);
LIGHTCC_REDUCE_KERNELS(LIGHTCC_DECLARE_REDUCE)
#define LIGHTCC_DECLARE_FINITE(name, ...) extern "C" void name(FiniteArguments);
LIGHTCC_FINITE_KERNELS(LIGHTCC_DECLARE_FINITE)
#define LIGHTCC_DECLARE_TOPK(name, ...) extern "C" void name(TopkArguments);
LIGHTCC_TOPK_SELECT_KERNELS(LIGHTCC_DECLARE_TOPK)
LIGHTCC_TOPK_SAMPLE_KERNELS(LIGHTCC_DECLARE_TOPK)
LIGHTCC_TOPK_COUNT_KERNELS(LIGHTCC_DECLARE_TOPK)
LIGHTCC_TOPK_LANE_KERNELS(LIGHTCC_DECLARE_TOPK)
LIGHTCC_TOPK_ENCODE_KERNELS(LIGHTCC_DECLARE_TOPK)
LIGHTCC_TOPK_MEASURE_KERNELS(LIGHTCC_DECLARE_TOPK)
LIGHTCC_DECLARE_TOPK(LIGHTCC_TOPK_PACK_KERNEL)
LIGHTCC_DECLARE_TOPK(LIGHTCC_TOPK_COMMIT_KERNEL)
#define LIGHTCC_DECLARE_MERGE(name, ...) extern "C" void name(MergeArguments);
LIGHTCC_MERGE_KERNELS(LIGHTCC_DECLARE_MERGE)
LIGHTCC_MERGE_CHECK_KERNELS(LIGHTCC_DECLARE_MERGE)
LIGHTCC_DECLARE_MERGE(LIGHTCC_MERGE_BEGIN_KERNEL)

}  // namespace lightcc::cuda
