// A bucket as one rank runs it: announced tensors matched with this rank's own operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/compression/residual/residual_store.hpp"
#include "lightcc/control/agreement.hpp"
#include "lightcc/engine/operation_table.hpp"
#include "lightcc/engine/plane.hpp"
#include "lightcc/engine/staged/staging.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

struct BucketTensor {
  std::shared_ptr<const AgreedTensor> agreed;
  InFlight* operation = nullptr;  ///< Null: this rank has joined and contributes zeros.
  Outcome outcome;                ///< What the operation will get,
  Status status;                  ///< unless something was wrong on this rank alone.
  std::uint64_t steps = 0;        ///< Those a compressed one made so far, on all ranks alike.

  const Signature& signature() const { return agreed->signature; }
  const std::vector<std::int64_t>& per_member() const { return agreed->per_member; }
};

struct Bucket {
  std::uint32_t process_set = 0;
  std::uint32_t lane = 0;
  std::vector<BucketTensor> tensors;  ///< At least one; all of one operation type.
  std::uint64_t sequence = 0;         ///< The announcement's: the same on all ranks.
};

/// All its tensors lie in it.
inline MemoryKind memory_kind(const Bucket& bucket) {
  return bucket.tensors.front().signature().memory;
}
/// Bytes of this rank's tensors.
std::uint64_t byte_count(const Bucket& bucket);

/// What a bucket runs on, beside its plane. All of it outlives the Work.
struct BucketSite {
  PlaneLane& lane;
  const std::vector<std::int32_t>& members;          ///< World ranks of the group.
  std::optional<GridPosition> compression_position;  ///< Where compressed tensors stand.
  ResidualStore& residuals;
  /// Copies what is staged, and compresses on the tensors' devices; null: neither is done.
  Staging* devices = nullptr;

  Group& group() const { return *lane.group; }
};

/// Where the result of `shape` goes: to memory of the caller's, or to a buffer of `allocate`. Null:
/// this rank has joined. What is wrong with the caller's memory is this rank's own error; a buffer
/// takes the result, as other ranks count on this one. Errors: kSystem.
using AllocateOutput = std::function<Result<std::shared_ptr<OutputBuffer>>(std::size_t bytes)>;
Result<std::byte*> output_for(BucketTensor& tensor,
                              std::vector<std::int64_t> shape,
                              const AllocateOutput& allocate);
/// The same for an operation of this rank; `status` is its own error.
Result<std::byte*> output_for(const Operation& operation,
                              std::vector<std::int64_t> shape,
                              Outcome& outcome,
                              Status& status,
                              const AllocateOutput& allocate);

/// The shape of what an all-gather gives, and the bytes of it that each member brings.
std::vector<std::int64_t> gathered_shape(const BucketTensor& tensor);
std::vector<std::size_t> gathered_bytes(const BucketTensor& tensor);

/// What the members' inputs become; an average is a sum with a factor.
Reduction reduction_of(const Signature& signature, std::size_t members);

}  // namespace lightcc
