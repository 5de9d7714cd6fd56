// How tests of kernels get from the simulator to a GPU, with the same cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda::testing {

/// Memory that arguments point to, and in which there are pointers as well.
struct Table {
  const void* rows;
  std::size_t bytes;
};

template <typename Arguments>
std::vector<Table> tables_of(const Arguments& /*arguments*/) {
  return {};
}
inline std::vector<Table> tables_of(const TopkArguments& arguments) {
  return {{arguments.tensors, arguments.count * sizeof(TopkTensor)}};
}
inline std::vector<Table> tables_of(const MergeArguments& arguments) {
  return {{arguments.tensors, arguments.count * sizeof(MergeTensor)},
          {arguments.lists, arguments.num_lists * sizeof(MergeList)}};
}

/// A launch as tests make it, with pointers to their own memory.
struct GpuLaunch {
  const void* kernel;  ///< A function of simulator/kernels.hpp, which stands for its name.
  std::uint32_t blocks;
  std::uint32_t threads;
  const void* arguments;
  std::size_t bytes;
  std::vector<Table> tables;
};

/// Where kernels run on a GPU, as LIGHTCC_TEST_GPU asks for.
class GpuLauncher {
 public:
  virtual ~GpuLauncher() = default;
  /// Copies what the arguments point to to the GPU, runs the kernel there, waits, and copies back.
  /// Returns what went wrong, or nothing.
  virtual std::string launch(const GpuLaunch& launch) = 0;
  /// Memory that no operator new has made, and that arguments may point to.
  virtual void add_memory(const void* first, std::size_t bytes) = 0;
  virtual void remove_memory(const void* first) = 0;
  /// What the GPU has in all; 0: there is none.
  virtual std::size_t memory_bytes() = 0;
};

/// Null: kernels run on the simulator. The program that can do otherwise sets it.
inline GpuLauncher* gpu_launcher = nullptr;

}  // namespace lightcc::cuda::testing
