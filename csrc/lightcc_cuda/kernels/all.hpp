// Every kernel, for those that go through all of them.
#pragma once

#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk.hpp"

/// Bucket(name, ...), and so on, for each kernel: by the arguments that it takes.
#define LIGHTCC_KERNELS_BY_ARGUMENTS(Bucket, Topk, Merge) \
  LIGHTCC_COPY_KERNELS(Bucket)                            \
  LIGHTCC_ALL_TOPK_KERNELS(Topk)                          \
  LIGHTCC_MERGE_KERNELS(Merge)
/// X(name, ...) for each kernel.
#define LIGHTCC_ALL_KERNELS(X) LIGHTCC_KERNELS_BY_ARGUMENTS(X, X, X)
