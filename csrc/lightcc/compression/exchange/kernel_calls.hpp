// What the tensors of a batch ask of their kernels, asked at once: a GPU then launches as many
// kernels for all of them as for one.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"

namespace lightcc {

class KernelCalls {
 public:
  void add(CompressionKernels& kernels, const TopkStep& step) { of(kernels).steps.push_back(step); }
  void add(CompressionKernels& kernels, TopkSum sum) { of(kernels).sums.push_back(std::move(sum)); }

  /// Begins what was added. Done when all of it is, or at once where that is null. Errors: of the
  /// kernels.
  Result<std::unique_ptr<Work>> start();

 private:
  struct OfKernels {
    CompressionKernels* kernels = nullptr;
    std::vector<TopkStep> steps;
    std::vector<TopkSum> sums;
  };

  OfKernels& of(CompressionKernels& kernels);

  std::vector<OfKernels> all_;  // In the order in which they were first asked.
};

}  // namespace lightcc
