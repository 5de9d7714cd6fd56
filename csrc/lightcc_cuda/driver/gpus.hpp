// The GPUs of this machine, and why lightcc cannot use them where it cannot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc::cuda {

/// The oldest GPUs whose code the kernels are: of compute capability 7.0 (Volta).
inline constexpr int kOldestMajor = 7;

struct Gpu {
  std::string name;
  int major = 0;  ///< Major number of the compute capability.
  int minor = 0;
  std::uint64_t bytes = 0;      ///< Size of its memory.
  std::string pci_bus_id;       ///< "0000:65:00.0"; that of the whole GPU, where this is a part.
  std::string uuid;             ///< "GPU-1f2e..."; empty: the driver is older than CUDA 11.4.
  bool is_slice = false;        ///< A part of a GPU (MIG), whose UUID begins with "MIG-".
  std::vector<int> peers;       ///< Numbers of GPUs whose memory it can use as its own.
  bool is_precompiled = false;  ///< The library has machine code for it.
  std::string objection;        ///< Why the kernels do not run on it; empty: they do.
};

struct Gpus {
  int driver_version = 0;  ///< As drivers count: 12080 is CUDA 12.8.
  std::vector<Gpu> list;   ///< By number.
};

/// Asks the driver, which this process opens for that. Makes no context, so it takes no memory of a
/// GPU. Errors, kUnimplemented: there is no GPU for lightcc, "no GPU, because ...".
LIGHTCC_EXPORT Result<Gpus> find_gpus();

/// Loads all kernels on a GPU and packs two tensors there, to see that it works. Takes a context,
/// which is some hundred MiB of the GPU's memory, and gives it back. Errors, kUnimplemented: the
/// kernels cannot run on it; kSystem: a call failed; kInternal: the result was wrong. Blocks: for
/// seconds where the driver has to compile the kernels first.
LIGHTCC_EXPORT Status try_gpu(int index);

}  // namespace lightcc::cuda
