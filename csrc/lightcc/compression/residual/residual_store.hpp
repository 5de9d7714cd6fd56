// What compression, of whatever kind, remembers of each tensor from one time to the next, by its
// name.
//
// A tensor that comes back under another shape, dtype or grid begins anew, and the log says so. In
// another kind of memory it takes the residual along.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/log.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/saved_tensor.hpp"
#include "lightcc/compression/residual/step_energy.hpp"

namespace lightcc {

/// One tensor, as far as this rank has to do with it.
struct TensorResidual {
  ResidualOf of = ResidualOf::kShard;
  GridPosition position;
  DataType dtype = DataType::kFloat32;
  std::size_t elements = 0;               ///< The tensor has so many.
  CompressionKernels* kernels = nullptr;  ///< Those that made the state.
  std::unique_ptr<ShardResidual> state;   ///< This rank's residual.
  std::uint64_t steps = 0;  ///< Times that the tensor was all-reduced; the same on all ranks.
  CompressionUsage usage;
  double send_factor = 0.0;  ///< Multiplies the residual when it is sent; 0: not known.

  /// What save() wrote, in host memory. kInvalidArgument: its parts do not fit together.
  static Result<std::shared_ptr<TensorResidual>> load(const SavedTensor& saved);
  /// Whether it can go on with such a tensor.
  bool fits(ResidualOf kind, const GridPosition& on, DataType type, std::size_t numel) const;
  /// Moves the residual to the memory of `to`.
  Status move_to(CompressionKernels& to);
  Result<Bytes> save() const;
  /// Multiplies the residual, which comes to host memory for that.
  Status scale(double factor);
};

/// Whose usage it is.
struct TensorUsage {
  std::uint32_t process_set = 0;
  std::string name;
  CompressionUsage usage;
};

/// Bytes since the store was made, on this rank.
struct CompressionCounters {
  std::uint64_t tensors = 0;      ///< Compressed all-reduces.
  std::uint64_t on_device = 0;    ///< Those of them whose elements a GPU selected.
  std::uint64_t dense_bytes = 0;  ///< Their tensors have so many.
  std::uint64_t sent_bytes = 0;   ///< In lists (or dense shards) handed to the transport.
  std::uint64_t passes = 0;       ///< Over a shard; one for each tensor in steady state.
};

/// Thread: the one that drives the progress loop.
class ResidualStore {
 public:
  using Key = std::pair<std::uint32_t, std::string>;  ///< Process set and name.

  /// The entry of `key` in the memory of `kernels`, which outlive the store; made anew where there
  /// is none that fits. kSystem: no memory for it.
  Result<std::shared_ptr<TensorResidual>> entry(const Key& key,
                                                ResidualOf of,
                                                const GridPosition& position,
                                                DataType dtype,
                                                std::size_t elements,
                                                CompressionKernels& kernels = host_kernels());
  /// Has what is sent of a tensor from now on be multiplied by `factor` (late_factor()). A
  /// residual of another factor is scaled, so that it counts as it would have then. Called
  /// before entry(), whose new entries have no factor.
  Status set_factor(const Key& key, double factor);
  /// TensorResidual::steps of what entry() would give for a shard.
  std::uint64_t steps_of(const Key& key,
                         const GridPosition& position,
                         DataType dtype,
                         std::size_t elements) const;
  /// Forgets the tensors of a process set.
  void forget(std::uint32_t process_set);
  std::size_t size() const { return entries_.size(); }
  CompressionCounters& counters() { return counters_; }
  const CompressionCounters& counters() const { return counters_; }

  /// What is remembered of each tensor.
  std::vector<TensorUsage> usage() const;
  /// Logs `what` and `why`, unless `why` was logged before.
  void log_once(const std::string& what, const std::string& why, LogLevel level = LogLevel::kInfo);
  /// Every entry, for load(). kInvalidArgument: a tensor is in flight.
  Result<std::vector<std::pair<Key, Bytes>>> save() const;
  /// What load() would take in, without doing it: it points into `saved`. Errors: as load().
  Result<SavedTensor> check(const Key& key, std::span<const std::byte> saved) const;
  /// Takes in what save() gave, under `key`. kInvalidArgument: damaged, or the tensor is in flight.
  Status load(const Key& key, std::span<const std::byte> saved);
  /// Multiplies what is remembered of the tensors of `keys`.
  /// kInvalidArgument: the factor is not above zero and finite, or a tensor is in flight.
  Status scale(double factor, std::span<const Key> keys);

 private:
  std::map<Key, std::shared_ptr<TensorResidual>> entries_;
  CompressionCounters counters_;
  std::set<std::string> logged_;
};

}  // namespace lightcc
