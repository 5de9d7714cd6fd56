// The launch of reduce.cu: sources of one type become one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"

#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/reduce.hpp"

namespace lightcc::cuda {

/// By DataType.
#define LIGHTCC_NAME(name, type) std::string_view(#name),
inline constexpr std::array kReduceKernelNames{LIGHTCC_REDUCE_KERNELS(LIGHTCC_NAME)};
#undef LIGHTCC_NAME
static_assert(kReduceKernelNames.size() == kDataTypeCount);

/// Of `kernels` with those of reduce.cu, and at least one element. Errors: kSystem.
inline Status launch_reduction(const Driver& driver,
                               const KernelTable& kernels,
                               DataType dtype,
                               StreamHandle* stream,
                               const ReduceArguments& arguments) {
  // A thread takes four elements at a time. More blocks than all GPUs run at once have nothing to
  // do sooner.
  constexpr u64 kTile = u64{kReduceThreads} * 4;
  constexpr u64 kMaxBlocks = 1024;
  const u64 tiles = (arguments.count + kTile - 1) / kTile;
  return launch(driver,
                kernels.find(kReduceKernelNames.at(static_cast<std::size_t>(dtype))),
                static_cast<unsigned>(std::min(tiles, kMaxBlocks)),
                kReduceThreads,
                stream,
                arguments);
}

}  // namespace lightcc::cuda
