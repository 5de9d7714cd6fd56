#include "lightcc/compression/kernel_calls.hpp"

#include <algorithm>

#include "lightcc/collectives/all_works.hpp"

namespace lightcc {

void KernelCalls::add(std::unique_ptr<Work> work) {
  if (work != nullptr) {
    begun_.push_back(std::move(work));
  }
}

KernelCalls::OfKernels& KernelCalls::of(TopkKernels& kernels) {
  const auto found = std::ranges::find(all_, &kernels, &OfKernels::kernels);
  return found != all_.end()
             ? *found
             : all_.emplace_back(OfKernels{.kernels = &kernels, .steps = {}, .sums = {}});
}

Result<std::unique_ptr<Work>> KernelCalls::start() {
  for (const OfKernels& calls : all_) {
    if (!calls.steps.empty()) {
      LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                               calls.kernels->compress_all(calls.steps));
      add(std::move(work));
    }
    if (!calls.sums.empty()) {
      LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> work, calls.kernels->merge_all(calls.sums));
      add(std::move(work));
    }
  }
  all_.clear();
  return all_of(std::exchange(begun_, {}));
}

}  // namespace lightcc
