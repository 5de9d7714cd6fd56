// What compression computes where a tensor lies, and keeps there: lists of the largest elements,
// and sums of lists. Other memory than the host's brings its own, with the same bits. Steps that
// send all elements are for host memory alone (host_residual.hpp).
//
// Lists are in host memory, as they travel. What returns a Work is done when the Work is, or at
// once where that is null. Everything else is done when it returns, or in order before whatever the
// plane's groups start afterwards.
//
// Thread: the one that drives the progress loop. Blocks: never.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/residual/shard_residual.hpp"
#include "lightcc/compression/topk/topk_list.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

namespace lightcc {

/// HostResidual::compress() of one shard. `outcome` outlives the Work, and is set when that is
/// done.
struct TopkStep {
  ShardResidual* state = nullptr;
  const std::byte* shard = nullptr;  ///< In the kernels' memory; null: zeros.
  TopkRequest request;
  std::span<std::byte> list;
  TopkOutcome* outcome = nullptr;
};

/// merge_lists() into `out`. What the lists point to outlives the Work.
struct TopkSum {
  std::vector<TopkListView> lists;
  std::byte* out = nullptr;
  std::size_t elements = 0;
  DataType dtype = DataType::kFloat32;
  double postscale = 1.0;
};

class CompressionKernels {
 public:
  CompressionKernels() = default;
  CompressionKernels(const CompressionKernels&) = delete;
  CompressionKernels& operator=(const CompressionKernels&) = delete;
  virtual ~CompressionKernels() = default;

  /// Why it cannot compress a shard of so many elements among so many blocks by lists. Empty: it
  /// can.
  virtual std::string why_unsupported(DataType /*dtype*/,
                                      std::size_t /*numel*/,
                                      std::size_t /*blocks*/) const {
    return {};
  }
  /// Its residual is zero. kSystem: there is no memory for it.
  virtual Result<std::unique_ptr<ShardResidual>> make_state(DataType dtype, std::size_t numel) = 0;
  /// What save() wrote, in whatever memory. Errors: of HostResidual::load(); kSystem.
  virtual Result<std::unique_ptr<ShardResidual>> load_state(std::span<const std::byte> saved) = 0;
  /// Memory of the kernels' kind, beside that of tensors.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  // For several tensors at once. Neither steps nor sums need to outlive the call.

  /// These kernels made the states, no two of which are the same. Where it fails, states may be
  /// pending. `request.level` is of host memory alone.
  virtual Result<std::unique_ptr<Work>> compress(std::span<const TopkStep> steps) = 0;
  virtual Result<std::unique_ptr<Work>> merge(std::span<const TopkSum> sums) = 0;
};

/// Those of host memory, which do everything at once. Their states are of HostResidual.
LIGHTCC_EXPORT CompressionKernels& host_kernels();

}  // namespace lightcc
