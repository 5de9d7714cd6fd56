// Compression's kernels for host memory: the CPU's.
#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/topk/merge.hpp"

namespace lightcc {
namespace {

class HostKernels final : public CompressionKernels {
 public:
  Result<std::unique_ptr<ShardResidual>> make_state(DataType dtype, std::size_t numel) override {
    try {
      return std::unique_ptr<ShardResidual>(std::make_unique<HostResidual>(dtype, numel));
    } catch (const std::bad_alloc&) {
      return make_error(ErrorCode::kSystem, "no memory for the residual of %zu elements", numel);
    }
  }
  Result<std::unique_ptr<ShardResidual>> load_state(std::span<const std::byte> saved) override {
    LIGHTCC_ASSIGN_OR_RETURN(HostResidual state, HostResidual::load(saved));
    return std::unique_ptr<ShardResidual>(std::make_unique<HostResidual>(std::move(state)));
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    // NOLINTNEXTLINE(modernize-avoid-c-arrays): a vector would write zeros first.
    const std::shared_ptr<std::byte[]> memory(new std::byte[std::max<std::size_t>(bytes, 1)]);
    return {memory, memory.get()};
  }
  Result<std::unique_ptr<Work>> compress(std::span<const TopkStep> steps) override {
    for (const TopkStep& step : steps) {
      HostResidual& state = *step.state->on_host();
      std::vector<std::byte> zeros;
      if (step.shard == nullptr) {
        zeros.resize(std::max<std::size_t>(state.numel() * element_size(state.dtype()), 1));
      }
      const std::byte* const shard = step.shard == nullptr ? zeros.data() : step.shard;
      LIGHTCC_ASSIGN_OR_RETURN(*step.outcome, state.compress(shard, step.request, step.list));
    }
    return std::unique_ptr<Work>();
  }
  Result<std::unique_ptr<Work>> merge(std::span<const TopkSum> sums) override {
    for (const TopkSum& sum : sums) {
      LIGHTCC_RETURN_IF_ERROR(
          merge_lists(sum.lists, sum.out, sum.elements, sum.dtype, sum.postscale));
    }
    return std::unique_ptr<Work>();
  }
};

}  // namespace

CompressionKernels& host_kernels() {
  static HostKernels kernels;
  return kernels;
}

}  // namespace lightcc
