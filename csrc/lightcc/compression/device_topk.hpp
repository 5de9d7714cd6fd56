// Top-k steps whose lists go from device to device, in memory of one kind. The host decides nothing
// between selecting and adding up. It is told afterwards what became of each step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/topk_kernels.hpp"
#include "lightcc/compression/topk_state.hpp"

namespace lightcc {

/// One tensor, or this member's shard of it. What it points to outlives the Work.
struct DeviceTopkStep {
  TopkShardState* state = nullptr;   ///< Of DeviceTopk::kernels().
  const std::byte* shard = nullptr;  ///< Null: zeros.
  TopkRequest request;
  std::byte* out = nullptr;  ///< The sum of all members' lists; null: nobody wants it.
  double postscale = 1.0;
  TopkOutcome* outcome = nullptr;  ///< Of the own list.
  bool* is_void = nullptr;         ///< Whether a list of any member is not finite, of any shard.
};

/// Of a lane of a process set, whose members have the same tensors. Where the set has two levels,
/// the members of a block have a shard of each.
///
/// Thread: the one that drives the progress loop. Blocks: never.
class DeviceTopk {
 public:
  DeviceTopk() = default;
  DeviceTopk(const DeviceTopk&) = delete;
  DeviceTopk& operator=(const DeviceTopk&) = delete;
  virtual ~DeviceTopk() = default;

  virtual TopkKernels& kernels() = 0;
  /// Whether it takes a tensor of so many elements. The same on all members.
  virtual bool takes(std::size_t elements) const = 0;
  /// Of so many at a time.
  virtual std::size_t max_tensors() const = 0;

  // Steps of one dtype: on all members the same ones, in the same order, with the same requests for
  // the same shard. Shards without elements are the last ones, on each member.

  /// What this member has to do before start(); null: nothing.
  virtual Result<std::unique_ptr<Work>> prepare(std::span<const DeviceTopkStep> steps) = 0;
  /// Begins at once: behind what the block's group was given before, and before what it is given
  /// afterwards. A sum has the bits of merge_lists(). By the end of the Work the device has
  /// committed each step, or undone it where that is void: the state is then to be told the same.
  /// Nobody rings when the Work can go on. Errors: kPeerFailed with the rank whose list is damaged;
  /// of the kernels; of what carries the lists.
  virtual Result<std::unique_ptr<Work>> start(std::span<const DeviceTopkStep> steps) = 0;
};

}  // namespace lightcc
