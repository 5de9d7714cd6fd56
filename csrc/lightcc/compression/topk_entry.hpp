// What compression, of whatever kind, remembers of one tensor from one time to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/compression/saved_entry.hpp"
#include "lightcc/compression/step_energy.hpp"
#include "lightcc/compression/topk_kernels.hpp"

namespace lightcc {

/// What compression did for one tensor on this rank, since it first met it.
struct CompressionUsage {
  std::uint64_t steps = 0;        ///< That counted: those with a NaN or infinity do not.
  std::uint64_t dense_bytes = 0;  ///< As those of TopkCounters.
  std::uint64_t sent_bytes = 0;
  StepEnergy energy;           ///< Of this rank's shard: means over about the last 100 of them.
  std::uint64_t measured = 0;  ///< Steps whose energy was measured.

  void add(const StepEnergy& one);
  /// The tensor's elements are `factor` times what they were.
  void scale(double factor);
};

/// One tensor, as far as this rank has to do with it.
struct TopkEntry {
  GridPosition position;
  DataType dtype = DataType::kFloat32;
  std::size_t elements = 0;               ///< Of the tensor.
  TopkKernels* kernels = nullptr;         ///< Of the plane that the state is on.
  std::unique_ptr<TopkShardState> state;  ///< Of this rank's shard.
  std::uint64_t steps = 0;  ///< Times that the tensor was all-reduced; the same on all ranks.
  CompressionUsage usage;
  double send_factor = 0.0;  ///< Multiplies what is kept back when it is sent; 0: not known.

  /// What save() wrote, on the plane of `kernels`. kInvalidArgument: its parts do not fit together.
  static Result<std::shared_ptr<TopkEntry>> load(const SavedEntry& saved, TopkKernels& kernels);
  /// Whether it can go on with such a tensor.
  bool fits(const GridPosition& on, DataType type, std::size_t numel) const;
  /// Moves what is kept back to the memory of `to`.
  Status move_to(TopkKernels& to);
  Result<Bytes> save() const;
};

}  // namespace lightcc
