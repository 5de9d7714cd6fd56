// Runs announced buckets, each on the plane of its memory: per process set and lane one after
// another, in the sequencer's order; across lanes and process sets side by side, so overlapping
// process sets cannot wait for each other in a circle.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/double_buffer.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/compression/residual/step_counts.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/operation_table.hpp"
#include "lightcc/engine/planes.hpp"
#include "lightcc/engine/route.hpp"
#include "lightcc/engine/store_exchange.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"
#include "lightcc/engine/timeline/timeline.hpp"
#include "lightcc/engine/unfinished.hpp"
#include "lightcc/fusion/cost_line.hpp"

namespace lightcc {

/// Thread: the one that drives the progress loop.
class Executor {
 public:
  /// The references outlive the executor.
  Executor(const Membership& world,
           const Knobs& knobs,
           Planes& planes,
           ResidualStore& residuals,
           const Clock& clock,
           OperationTable& operations,
           Timeline& timeline);

  /// Makes the groups of a new process set. `waiting` (may be null) completes when this rank can
  /// use it. Every rank calls this, member or not.
  Status add_process_set(std::uint32_t id,
                         const std::vector<std::int32_t>& ranks,
                         InFlight* waiting);
  void remove_process_set(std::uint32_t id);
  /// Why this rank's plane cannot run an operation that was checked; empty: it can.
  std::string why_unsupported(const Operation& operation) const;
  /// Signature::steps_ahead of an operation that is about to be reported.
  std::int64_t steps_ahead(const Signature& signature) const;
  /// Queues a bucket of a set that this rank is a member of. Errors: kInvalidArgument, this rank
  /// has joined and has nothing for such memory.
  Status run(Bucket bucket);
  /// Ends the one operation of a bucket whose result came with the announcement. Errors: kSystem
  /// when an output cannot be allocated.
  Status take_result(Bucket bucket, std::span<const std::byte> result);

  /// Moves everything on. True when something moved.
  Result<bool> advance();
  bool idle() const { return queued_ == 0 && unfinished_.empty(); }
  /// Waits until NCCL has made the groups of the first set. Errors: kTimeout; of NCCL; why another
  /// rank cannot join. Blocks: yes.
  Status await_communicators(const Joining& joining);
  /// How long it may take until somebody looks: what waits for the ready event of an input may fail
  /// without that anybody rings.
  Duration time_to_look() const;
  /// Buckets that are done, and not finished. What may be asked on any thread may be asked here.
  const UnfinishedBuckets& unfinished() const { return unfinished_; }
  /// Process set and lane of the buckets that finished since the last call. Valid until the next.
  const std::vector<std::pair<std::uint32_t, std::uint32_t>>& take_finished() {
    return finished_.take();
  }
  std::uint64_t buckets() const { return buckets_; }
  /// Buckets whose results came with the announcement.
  std::uint64_t inline_allreduces() const { return inline_allreduces_; }
  DeviceBuckets device_buckets() const;
  /// Where this rank stands when tensors of a set are compressed; nothing where they never are, or
  /// there is no such set with this rank. It is known after drop_all(), as residuals are.
  std::optional<GridPosition> compression_position(std::uint32_t process_set) const;
  /// What all-reduces took so far, by process set.
  std::vector<AllreduceCost> allreduce_costs() const;
  /// Abandons everything, groups included: afterwards no caller memory is touched.
  void drop_all();

 private:
  struct Running {
    Bucket bucket;
    Route route;
    // Where buckets are to begin in order: until it has begun, or on two levels has ended.
    std::optional<std::uint64_t> turn;
    std::unique_ptr<Work> work;  // Null until it is at the front.
    TimePoint started;
    std::shared_ptr<ReadyEvent> late;                 // An input that was not ready when asked.
    bool late_rings = false;                          // When it is.
    std::vector<std::shared_ptr<ReadyEvent>> inputs;  // Those that were taken, for the timeline.
    std::shared_ptr<DeviceTrace> trace;               // Null: nothing is recorded of a device.
  };
  struct Set {
    std::vector<std::int32_t> ranks;
    Planes::Lanes groups{};
    Planes::Facts facts;  // Where this rank is a member.
    std::vector<std::deque<Running>> lanes;
    InFlight* waiting = nullptr;
    bool member = false;
    bool has_groups = false;  // All of them, once they are made.
    struct Costs {
      CostLine flat;
      CostLine two_level;
    };
    std::array<Costs, kCarriers> costs;  // By carrier.
  };

  Result<bool> make_groups();
  Status start(const Set& set, std::size_t lane, Running& running);
  Result<bool> advance_lane(Set& set, std::size_t lane);
  static Result<Progress> advance_work(const Running& running);
  Result<bool> advance_unfinished();
  /// The bucket is not done; null: it is not to be done before it is finished.
  std::shared_ptr<DeviceEnd> end_on_device(const Running& running) const;
  /// The bucket at the front is done: until `end` on its device, or altogether where that is null.
  void end_front(Set& set, std::deque<Running>& queue, const std::shared_ptr<DeviceEnd>& end);
  Result<bool> may_start(Running& running);
  bool is_compressed(const Signature& signature) const;
  /// Finds out at which steps the tensors of a bucket are, where it is compressed.
  static bool counts_steps(const Running& running);
  void begin_steps(Running& running);
  void end_steps(const Running& running);
  void count_on_device(const Route& route);
  void release_turn(Running& running);
  Result<bool> are_inputs_ready(Running& running);
  /// Whether its inputs are for its device to wait for, which then has been told so.
  bool waits_on_device(Running& running);
  /// The event of the operation that brings a tensor; null: it is ready.
  static std::shared_ptr<ReadyEvent> ready_event_of(const BucketTensor& tensor);
  /// Nobody asks for it any more, but perhaps the timeline.
  void take_input(Running& running, const BucketTensor& tensor);
  void explain_adasum_once(const Set& set, const Running& running);
  /// Where buckets run whose first tensor is such; none: nothing here serves that memory.
  std::optional<Route> route_of(const Set& set, const Signature& first, std::uint64_t bytes) const;
  static std::uint64_t learnable_bytes(const Bucket& bucket);
  void learn_cost(Set& set, const Running& running);
  void log_bucket(const Running& running) const;
  void finish(Bucket& bucket, const std::shared_ptr<DeviceEnd>& end = nullptr);

  const Membership& world_;
  std::size_t num_lanes_;
  std::size_t staged_piece_bytes_;  // 0: memory is staged a bucket at a time.
  bool two_level_asked_;            // By the user, not by default.
  const Clock& clock_;
  OperationTable& operations_;
  Timeline& timeline_;
  Planes& planes_;
  ResidualStore& residuals_;
  StepCounts step_counts_;
  std::map<std::uint32_t, Set> sets_;
  std::map<std::uint32_t, GridPosition> compression_positions_;  // They stay after drop_all().
  std::size_t sets_in_making_ = 0;
  std::size_t queued_ = 0;
  UnfinishedBuckets unfinished_;
  std::set<std::uint64_t> turns_;  // Other buckets wait for these.
  std::uint64_t next_turn_ = 0;
  std::uint64_t buckets_ = 0;
  std::uint64_t inline_allreduces_ = 0;
  DeviceBuckets device_buckets_;
  Duration time_to_look_ = Duration::max();
  bool explained_adasum_ = false;
  DoubleBuffer<std::pair<std::uint32_t, std::uint32_t>> finished_;
};

}  // namespace lightcc
