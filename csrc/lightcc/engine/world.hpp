// The engine's public interface: a World is one membership of ranks, from init to shutdown or
// failure.
//
// A process may hold several Worlds (tests run ranks as threads), and a new one may follow an old
// one. Operations are submitted from any thread, matched by name across ranks by the sequencer on
// rank 0, and carried out by a progress loop that either the World's own thread or a waiting caller
// drives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/export.hpp"
#include "lightcc/base/knobs.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/residual/residual_store.hpp"
#include "lightcc/control/lateness.hpp"
#include "lightcc/engine/operation.hpp"
#include "lightcc/rendezvous/epoch.hpp"

namespace lightcc {

class Plane;
class Staging;
struct PlaneSite;
/// Makes a plane when the world's ranks have met; null: there is none here. An error ends the start
/// on all ranks.
using PlaneMaker = std::function<Result<std::unique_ptr<Plane>>(const PlaneSite& site)>;

/// The process set of all ranks.
inline constexpr std::uint32_t kGlobalProcessSet = 0;

/// How the operations of one call belong together.
enum class Grouping : std::uint8_t {
  kNone,          ///< Each is for itself: what other ranks put together need not be the same.
  kNamedMembers,  ///< One all-or-nothing group, whose members have names of their own.
  kOneName,       ///< One all-or-nothing group, named as its first member says.
};

struct SubmitOptions {
  Grouping grouping = Grouping::kNone;
  /// The caller calls wait() next, on this thread, and so drives the operations itself; nobody else
  /// is woken for them.
  bool waits = false;
  /// World::repeat() follows. The call is one all-reduce in the host's memory, with a name of its
  /// own and without a ready event.
  bool repeats = false;
};

/// Told once how a call's operations ended: their outcomes in the order of submission, or the first
/// error when all have ended.
///
/// It runs outside all locks, on a thread that only runs completions. Two completions may run at
/// the same time on two threads.
/// - It may submit operations, and ask poll(), stats() and the like.
/// - It may wait for an operation. Other completions run meanwhile, on other threads.
/// - It may not shut a World down: that is refused with kInvalidArgument. Nor may it destroy a
///   World: an error is logged, and the World stays as long as the process.
/// - An exception that leaves it is logged and goes no further.
/// Each runs before shutdown() returns. In a child of fork() none runs.
using Completion = std::function<void(Result<std::vector<Outcome>>)>;

struct HandleState;
/// A call's operations under way, for poll() and wait(). Dropping it cancels nothing.
using Handle = std::shared_ptr<HandleState>;

struct ProcessSetInfo {
  std::uint32_t id = 0;
  std::vector<std::int32_t> ranks;
};

/// What is recorded of the progress loop, and where (docs/running/timeline.md).
struct TimelineOptions {
  std::string path;
  bool marks_cycles = false;
  bool all_ranks = false;  ///< Each into a file of its own; else rank 0 alone.
};

struct WorldOptions {
  Epoch epoch;
  Knobs knobs;
  std::string start_limit = "HOROVOD_START_TIMEOUT";    ///< What sets knobs.start_timeout_s.
  std::vector<std::vector<std::int32_t>> process_sets;  ///< Static ones: ids 1, 2, ...
  /// They serve other memory than the host's, one for each kind. (engine/plane.hpp)
  std::vector<PlaneMaker> planes;
  /// They are for memory that no plane serves, or whose plane does not run a bucket. It travels by
  /// the host's plane. One for each kind; it outlives the World. (engine/staged/staging.hpp)
  std::vector<std::shared_ptr<Staging>> staging;
  /// This rank can be asked about GPUs where Knobs::gpu_operations is "auto".
  bool has_gpus = false;
  const Clock* clock = &Clock::system();
};

/// Where this rank stands.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;  ///< Index of this host among those that have this local rank.
  int cross_size = 1;
  bool homogeneous = true;
  std::vector<std::vector<int>> hosts;  ///< Ranks by host, ascending; hosts by their lowest rank.
};

/// What carries a bucket.
enum class Carrier : std::uint8_t {
  kHost,    ///< The host's plane, in its memory.
  kStaged,  ///< The same, by way of its memory.
  kNccl,    ///< NCCL, from GPU to GPU.
};
inline constexpr std::size_t kCarriers = 3;

/// What all-reduces of one process set take on this rank, as a line fitted to those that ran.
struct AllreduceCost {
  std::uint32_t process_set = 0;
  Carrier carrier = Carrier::kHost;
  bool two_level = false;
  std::uint64_t max_bytes = 0;  ///< Larger buckets run otherwise.
  std::uint64_t samples = 0;
  double seconds = 0;  ///< What a bucket without bytes takes.
  double seconds_per_byte = 0;
};

/// Buckets on memory that is not the host's, by what carried them.
struct DeviceBuckets {
  std::uint64_t staged = 0;        ///< The host's plane, by way of its memory.
  std::uint64_t by_own_plane = 0;  ///< That memory's own plane: NCCL.
  std::uint64_t on_levels = 0;     ///< Those of them that ran on two levels.
  std::uint64_t unfinished = 0;    ///< Those of them that it has not finished yet.
};

/// Counters since the world was made.
struct WorldStats {
  std::uint64_t operations = 0;           ///< Completed submissions.
  std::uint64_t buckets = 0;              ///< Collectives run for them.
  std::uint64_t inline_allreduces = 0;    ///< Buckets that the negotiation did.
  std::uint64_t one_shot_allreduces = 0;  ///< Buckets that each rank combined for itself.
  DeviceBuckets device_buckets;           ///< Buckets on memory that is not the host's.
  std::uint64_t payload_bytes = 0;        ///< Input bytes of completed submissions.
  std::uint64_t network_bytes_sent = 0;
  std::uint64_t network_bytes_received = 0;
  std::uint64_t network_retransmits = 0;  ///< Packets that TCP sent again; elsewhere 0.
  std::uint64_t control_frames_sent = 0;
  std::uint64_t in_flight = 0;    ///< Submissions that have not completed.
  std::uint64_t sleeps = 0;       ///< Times the progress loop went to sleep.
  std::uint64_t yields = 0;       ///< Times it offered its core between two looks.
  std::uint64_t slow_yields = 0;  ///< Times that the core came back late.
  CompressionCounters compression;
  std::vector<TensorUsage> compressed;
  std::vector<AllreduceCost> allreduce_costs;
  Lateness lateness;  ///< On rank 0; elsewhere empty.
};

/// What top-k compression remembers of one tensor on one rank, to be loaded again.
struct SavedCompression {
  std::uint32_t process_set = kGlobalProcessSet;
  std::string name;  ///< The operation's.
  Bytes bytes;
};

/// When wait() returns, of what a device has been given.
enum class Until : std::uint8_t {
  kEnqueued,  ///< When the operations are done: order() says who may use the results.
  kFinished,  ///< When the device has finished them as well.
};

class World;
/// Destroys a World, but not inside a completion.
struct WorldDeleter {
  LIGHTCC_EXPORT void operator()(World* world) const;
};
using WorldPtr = std::unique_ptr<World, WorldDeleter>;

/// Thread: any, unless said otherwise.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  /// Joins all ranks into one world. Blocks: until all have joined or the knobs' start timeout.
  LIGHTCC_EXPORT static Result<WorldPtr> create(WorldOptions options);

  virtual const Topology& topology() const = 0;

  /// Starts the operations, and calls `done` when all have ended. Errors (at once, nothing started,
  /// `done` not called): kInvalidArgument for what is wrong on this rank, the world's error when it
  /// is over.
  virtual Status submit(std::vector<Operation> operations,
                        Completion done,
                        const SubmitOptions& options) = 0;
  /// The same with a handle, for who wants to ask or to wait. Errors: as of submit().
  virtual Result<Handle> start(std::vector<Operation> operations, const SubmitOptions& options) = 0;
  /// Calls `callback` once when the handle is done, as a completion; at once, on this thread, when
  /// it is done already. What became of it is for wait(), which then does not wait.
  virtual void call_when_done(const Handle& handle, std::function<void()> callback) = 0;
  /// Whether the handle is done, and devices have finished what they were given.
  virtual bool poll(const Handle& handle) = 0;
  /// Waits for `handle` and returns its outcomes in submission order; to be called once.
  /// `interrupted` is asked about every 100 ms; when it says true, returns kTimeout and the handle
  /// can be waited for again. Errors: kMismatch, or the world's error; no device uses memory of the
  /// operations then, unless it does not end what it was told to abort. Blocks: yes.
  virtual Result<std::vector<Outcome>> wait(const Handle& handle,
                                            const std::function<bool()>& interrupted,
                                            Until until) = 0;
  Result<std::vector<Outcome>> wait(const Handle& handle,
                                    const std::function<bool()>& interrupted) {
    return wait(handle, interrupted, Until::kFinished);
  }

  /// Does the operation of `handle` again, which start() was told repeats, on other memory like the
  /// first, and waits for it. What was checked and named is not asked for again, and nothing is
  /// allocated. `interrupted`: as in wait(), which then waits for it. Errors: of start() and
  /// wait(). Blocks: yes.
  virtual Status repeat(const Handle& handle,
                        void* input,
                        void* output,
                        const std::function<bool()>& interrupted) = 0;

  // What a device has been given and not finished.

  /// The handle was waited for. Has what `stream` is given from now on wait for the results,
  /// on their device, whose handle `stream` is. False: it cannot wait, as it is being captured into
  /// a graph. Errors: what the operations failed with; kSystem. Blocks: where the stream is full.
  virtual Result<bool> order(const Handle& handle, std::uintptr_t stream) = 0;
  /// Whether the handle's operations may still use memory: they are not done, or not finished.
  virtual bool uses_memory(const Handle& handle) const = 0;
  /// Waits until devices have finished all that is done so far. `interrupted`: as in wait().
  /// Errors: kTimeout, interrupted; the world's error where one of them fails, or it is over and
  /// there was such a one. Blocks: yes.
  virtual Status finish(const std::function<bool()>& interrupted) = 0;

  virtual std::vector<ProcessSetInfo> process_sets() const = 0;
  virtual WorldStats stats() const = 0;

  /// Where this rank stands in the grid over which tensors of a process set are compressed; nothing
  /// where they are not, because all its ranks share a host or it does not exist.
  virtual std::optional<GridPosition> compression_position(std::uint32_t process_set) const = 0;
  /// Whether a floating-point tensor of so many bytes is compressed when that is asked for.
  virtual bool compresses(std::uint32_t process_set, std::uint64_t num_bytes) const = 0;
  /// What compression remembers on this rank. kInvalidArgument: a compressed tensor is in flight.
  virtual Result<std::vector<SavedCompression>> save_compression() const = 0;
  /// What load_compression() would take in, without doing it: it points into `saved`. Errors: as
  /// load_compression().
  virtual Result<SavedTensor> check_compression(const SavedCompression& saved) const = 0;
  /// Remembers what was saved instead. kInvalidArgument: it is damaged, or its tensor is in flight.
  virtual Status load_compression(const SavedCompression& saved) = 0;
  /// Multiplies what is remembered of the tensors `names` of a process set, because their gradients
  /// will be scaled by so much more. kInvalidArgument: not a factor above 0, or one is in flight.
  virtual Status scale_compression(double factor,
                                   std::uint32_t process_set,
                                   const std::vector<std::string>& names) = 0;

  /// Records into a file from now on, instead of the one before if there is one. Local. Errors:
  /// kInvalidArgument names a file that cannot be written; kSystem. Blocks: for the file system.
  virtual Status start_timeline(const TimelineOptions& options) = 0;
  /// Completes the file. Does nothing where there is none. Blocks: for the file system.
  virtual void stop_timeline() = 0;
  /// Whether this rank records a timeline: ready events that know their time are of use then.
  virtual bool is_recording() const = 0;

  /// Ends the world on all ranks with `error`, unless it is over. Local; shutdown() follows.
  virtual void fail(const Status& error) = 0;
  /// Leaves the world. Collective in good times: waits until all ranks have left or one has failed;
  /// pending operations fail with kShutDown. After an error it is local and immediate. Idempotent.
  /// kInvalidArgument inside a completion; the world's error where what was done, but not finished,
  /// fails meanwhile.
  virtual Status shutdown() = 0;
  /// Whether the world ended with an error: another rank may be gone or hang. Also after shutdown.
  virtual bool failed() const = 0;
};

/// Whether this thread runs a completion now.
LIGHTCC_EXPORT bool is_in_completion();
/// For a completion that is about to wait otherwise than by World::wait(): the next ones do not
/// wait for it. Does nothing elsewhere.
LIGHTCC_EXPORT void let_other_completions_run();

/// In the child of fork(): closes every descriptor of every World of this process and marks them
/// dead. Installed once by pthread_atfork when the first World is made.
void mark_all_worlds_dead_in_child();

}  // namespace lightcc
