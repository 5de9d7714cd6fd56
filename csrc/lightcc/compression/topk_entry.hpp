// What compression, of whatever kind, remembers of one tensor from one time to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid_group.hpp"
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

/// How far a tensor has come.
struct TopkSteps {
  std::uint64_t steps = 0;    ///< TopkEntry::steps.
  std::uint64_t counted = 0;  ///< Those that counted: not void.
  bool operator==(const TopkSteps&) const = default;
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
  std::uint64_t other_steps = 0;  ///< `steps` that go with the other side.
  bool state_stayed = false;      ///< In the last step: it was void.
  bool is_cut_off = false;        ///< A step began after it, and did not come to its end.
  double send_factor = 0.0;       ///< Multiplies what is kept back when it is sent; 0: not known.
  std::optional<TopkSteps> marked = std::nullopt;  ///< At the last TopkStore::mark().
  /// Of then, as TopkStore::save() has it: from the second step after it on.
  Bytes marked_state = {};

  /// What save() wrote, on the plane of `kernels`. kInvalidArgument: its parts do not fit together.
  static Result<std::shared_ptr<TopkEntry>> load(const SavedEntry& saved, TopkKernels& kernels);
  /// Whether it can go on with such a tensor.
  bool fits(const GridPosition& on, DataType type, std::size_t numel) const;
  /// Moves what is kept back to the memory of `to`.
  Status move_to(TopkKernels& to);

  /// Nothing where the plane of the state does not count.
  std::optional<TopkSteps> come_to() const;
  Result<Bytes> save() const;

  /// Has it go on as if it had made `agreed` steps by now, with what was kept back as it is.
  /// Errors: kInvalidArgument, as of saved bytes.
  Status go_on_at(std::uint64_t agreed);
  /// The states that are still there: TopkStore::moments(). Errors: of save().
  Result<std::vector<std::pair<TopkSteps, Bytes>>> moments() const;
  /// Before each step: copies what there was at the last mark(), if the step takes its place.
  Status keep_marked();
};

}  // namespace lightcc
