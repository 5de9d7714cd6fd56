// What serves the tensors of one kind of memory: the groups of each process set, memory for
// outputs, and what is computed beside the groups' own reductions.
//
// A bucket runs on the plane of the memory that its tensors lie in. The executor has a plane for
// the host's memory, and one for each other kind that WorldOptions::planes makes. All planes run
// the buckets of one lane of a process set one after another, so a plane may pass work on to
// another one's groups of the same lane: tensors may be staged in host memory.
//
// Thread: the one that drives the progress loop. Blocks: never, unless said otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/knobs.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/engine/loop_bell.hpp"
#include "lightcc/engine/operation.hpp"
#include "lightcc/engine/route.hpp"
#include "lightcc/engine/store_exchange.hpp"

namespace lightcc {

struct Bucket;
struct BucketSite;
struct Membership;

/// The groups of one lane of a process set. All planes have the levels of the host's, so that
/// tensors are cut alike on all when they are compressed.
struct PlaneLane {
  std::unique_ptr<Group> group;
  std::shared_ptr<GridState> grid;  ///< For compression; null: there are no levels.
  /// As CompressedLevels::shards: `grid` is the host plane's. It goes before that.
  std::unique_ptr<Group> shards = nullptr;
  /// The same where compression runs on the tensors' device, and shards stay there.
  std::unique_ptr<Group> device_shards = nullptr;
};
using PlaneLanes = std::vector<PlaneLane>;

/// Connecting hundreds of GPUs takes longer than their ranks' joining.
inline constexpr Duration kConnectPatience = std::chrono::seconds(300);

class Plane {
 public:
  Plane() = default;
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;
  virtual ~Plane() = default;

  virtual MemoryKind memory_kind() const = 0;

  // Buckets. (route.hpp)

  /// Starts the collective of a bucket that takes `route`, which ends here. Outputs without memory
  /// of the caller's are allocated where their inputs are. Tensors that are staged are copied to
  /// the host and back, large ones piece by piece; bits, names and residuals of compression are
  /// those of the same bucket in host memory. The bucket and all of `site` outlive the Work.
  /// Errors: kSystem when an output or a residual of compression cannot be allocated.
  /// (bucket.cpp)
  Result<std::unique_ptr<Work>> start(Bucket& bucket, const Route& route, const BucketSite& site);
  /// Whether its groups run buckets with such tensors. The same on all ranks.
  virtual bool runs(const Signature& /*signature*/) const { return true; }
  /// Has the device wait for `inputs` before what the groups start next. False: it cannot, and they
  /// are waited for on the host.
  virtual bool begin_behind(const std::vector<std::shared_ptr<ReadyEvent>>& /*inputs*/) {
    return false;
  }
  /// Why it cannot run an operation of this rank, which then fails on all ranks of its process set:
  /// its tensor is not where the plane has its groups. Empty: it can.
  virtual std::string why_unsupported(const Operation& /*operation*/) const { return {}; }

  // Process sets.

  /// Begins to make the groups of a set. Every rank calls this for every new set, member or not.
  /// Errors: kSystem. Blocks: while shared memory is made.
  virtual Status add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks) = 0;
  /// No Work of its groups is left, but of operations that a device has been given.
  virtual void remove_process_set(std::uint32_t id) = 0;
  /// Goes on with the groups that were begun; true when something moved. kPeerFailed: a rank that
  /// has to help is gone.
  virtual Result<bool> make_groups() = 0;
  /// What makes the groups, and may take kConnectPatience when a world starts; null: nothing that
  /// takes long.
  virtual const char* what_makes_groups() const { return nullptr; }
  /// The blocks of a set that has two levels; the same on all ranks, whether they are members or
  /// not.
  virtual std::optional<Grid> grid_of(const std::vector<std::int32_t>& /*ranks*/) const {
    return std::nullopt;
  }
  /// Null: they are not made yet, or this rank is no member. Valid until the set is removed.
  virtual PlaneLanes* lanes(std::uint32_t id) = 0;
  /// The set was added and this rank is a member. All members have the same facts.
  virtual PlaneFacts facts(std::uint32_t id) const = 0;

  // Memory of this kind.

  /// An output that the caller gave no memory for, on the input's device. Where there is no memory,
  /// its data is null, or an error says why: kSystem.
  virtual Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes,
                                                         std::int32_t device) = 0;
  /// Done on return, or in order before whatever the groups start afterwards.
  virtual void copy(std::byte* out, const std::byte* in, std::size_t bytes) = 0;

  // Arithmetic on it.

  /// Errors: of make_adasum_work().
  virtual Result<std::unique_ptr<Work>> start_adasum(Group& group,
                                                     const TensorSpan& tensor,
                                                     const Reduction& reduction) = 0;
};

/// What a plane is made of. All but the knobs outlive it.
struct PlaneSite {
  Membership& world;
  const Knobs& knobs;
  SimdLevel simd;
  Plane& host;  ///< The plane of host memory.
  /// All-gathers a value of each rank, by rank. All planes of a kind call it alike. Errors: a rank
  /// did not come, or cannot join. Blocks: for all ranks.
  std::function<Result<std::vector<Bytes>>(const std::string& key, Bytes own)> exchange;
  /// Tells all ranks what has come of something that takes all of them. `made` says so of this
  /// rank, nothing while it goes on; where it fails on another rank, it is not waited for. Returns
  /// why it failed, or OK where all made it; the same on all ranks. Errors of it: of exchange().
  /// Blocks: for all ranks, each of which may take `patience`.
  std::function<Result<std::string>(const std::string& key, const Made& made, Duration patience)>
      agree;
  /// Rung when a Work can go on.
  std::shared_ptr<LoopBell> bell;
};

}  // namespace lightcc
