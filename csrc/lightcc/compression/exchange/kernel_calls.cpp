#include "lightcc/compression/exchange/kernel_calls.hpp"

#include <algorithm>

#include "lightcc/collectives/all_works.hpp"

namespace lightcc {

KernelCalls::OfKernels& KernelCalls::of(CompressionKernels& kernels) {
  const auto found = std::ranges::find(all_, &kernels, &OfKernels::kernels);
  return found != all_.end()
             ? *found
             : all_.emplace_back(OfKernels{.kernels = &kernels, .steps = {}, .sums = {}});
}

Result<std::unique_ptr<Work>> KernelCalls::start() {
  std::vector<std::unique_ptr<Work>> begun;
  const auto keep = [&](Result<std::unique_ptr<Work>> work) {
    if (work.ok() && *work != nullptr) {
      begun.push_back(std::move(*work));
    }
    return work.status();
  };
  for (const OfKernels& calls : std::exchange(all_, {})) {
    if (!calls.steps.empty()) {
      LIGHTCC_RETURN_IF_ERROR(keep(calls.kernels->compress(calls.steps)));
    }
    if (!calls.sums.empty()) {
      LIGHTCC_RETURN_IF_ERROR(keep(calls.kernels->merge(calls.sums)));
    }
  }
  return all_of(std::move(begun));
}

}  // namespace lightcc
