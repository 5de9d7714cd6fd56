// The kernels as functions of a context: all of them, loaded at once.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/kernel_images.hpp"

namespace lightcc::cuda {

/// Every kernel of csrc/lightcc_cuda/kernels is loaded here, because a driver that loads one at its
/// first launch may wait for the GPU to become idle. That is never, where its work waits for peers.
///
/// Made, used and destroyed with the context current.
class KernelTable {
 public:
  /// Takes machine code for the GPU, where `cubins` have it and the driver takes it, and else PTX.
  /// Errors, kUnimplemented: this driver cannot compile the kernels for this GPU, with its own
  /// words; kSystem: another failure of a call.
  static Result<KernelTable> load(const Driver& driver,
                                  std::span<const Cubin> cubins = cubins_in_library());

  std::size_t size() const { return functions_.size(); }
  /// Null: there is no kernel of that name.
  FunctionHandle* find(std::string_view name) const;

 private:
  std::vector<Module> modules_;
  std::unordered_map<std::string, FunctionHandle*> functions_;
};

using SharedKernels = std::shared_ptr<const KernelTable>;

/// The kernels of a context, which is current, also when the last one lets go of them: those that
/// another thread has loaded and holds, or they are loaded. Errors: of KernelTable::load(). Blocks:
/// while any thread loads kernels.
Result<SharedKernels> shared_kernels(const Context& context);

/// The names of all kernels, from the lists of their arguments' headers.
const std::vector<std::string>& kernel_names();

/// Launches a kernel that takes one struct. Errors: kSystem.
template <typename Arguments>
Status launch(const Driver& driver,
              FunctionHandle* kernel,
              unsigned blocks,
              unsigned threads,
              StreamHandle* stream,
              Arguments arguments) {
  std::array<void*, 1> pointers{&arguments};
  return driver.launch(
      kernel, blocks, 1U, 1U, threads, 1U, 1U, 0U, stream, pointers.data(), nullptr);
}

}  // namespace lightcc::cuda
