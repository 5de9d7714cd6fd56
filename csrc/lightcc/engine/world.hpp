// The engine's public face: one World is one membership of ranks, from init to shutdown or failure.
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
#include "lightcc/compression/topk_store.hpp"
#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

using HandleId = std::uint64_t;

/// The process set of all ranks.
inline constexpr std::uint32_t kGlobalProcessSet = 0;

/// One operation as this rank asks for it. Memory stays the caller's; it must stay valid, and
/// inputs unchanged, until the handle is done.
struct Submission {
  OpType op = OpType::kAllreduce;
  std::string name;           ///< Matches this operation across ranks; unique while in flight.
  bool is_automatic = false;  ///< The name was made up here and never comes back.
  std::uint32_t process_set = kGlobalProcessSet;
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;  ///< Of the input (recv: of what is expected).
  const void* input = nullptr;
  /// Null: the engine allocates the output (allgather, alltoall, reducescatter always do so).
  void* output = nullptr;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  /// Allreduce: asks for compression. Tensors that cannot be compressed, or are too small for it
  /// (LIGHT_TOPK_THRESHOLD), travel as they are.
  std::optional<TopkSpec> topk;
  bool may_compress = false;         ///< Allreduce: LIGHT_TOPK_ALLREDUCE may ask for it.
  int root_or_peer = -1;             ///< World rank: broadcast's root, send's and recv's peer.
  std::vector<std::int64_t> splits;  ///< Alltoall: rows for each member; empty: even.
  std::vector<std::int32_t> ranks;   ///< kAddProcessSet: its members, ascending.
  FusionWish fusion;                 ///< Of an all-reduce.
};

/// Engine-allocated output. 64-byte aligned.
class LIGHTCC_EXPORT OutputBuffer {
 public:
  explicit OutputBuffer(std::size_t bytes);
  ~OutputBuffer();
  OutputBuffer(const OutputBuffer&) = delete;
  OutputBuffer& operator=(const OutputBuffer&) = delete;
  std::byte* data() { return data_; }
  std::size_t size_bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

/// What became of one Submission.
struct Outcome {
  std::shared_ptr<OutputBuffer> output;       ///< When the engine allocated it.
  std::vector<std::int64_t> shape;            ///< Of the output.
  std::vector<std::int64_t> received_splits;  ///< Alltoall: rows from each member.
  std::int32_t value = 0;                     ///< Join: last rank; kAddProcessSet: the id.
};

struct ProcessSetInfo {
  std::uint32_t id = 0;
  std::vector<std::int32_t> ranks;
};

struct WorldOptions {
  Knobs knobs;
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store;  ///< May be null when size is 1.
  /// Of this world's keys in the store; the same on all ranks, and no other world's.
  std::string key_prefix;
  std::string secret;  ///< Shared by the job's ranks.
  /// Address of the store as "host:port"; the route to it picks this rank's address. May be empty.
  std::string rendezvous_address;
  std::vector<std::vector<std::int32_t>> process_sets;  ///< Static ones: ids 1, 2, ...
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
};

/// What all-reduces of one process set take on this rank, as a line fitted to those that ran.
struct AllreduceCost {
  std::uint32_t process_set = 0;
  bool two_level = false;
  std::uint64_t most_bytes = 0;  ///< Larger buckets run otherwise.
  std::uint64_t samples = 0;
  double seconds = 0;  ///< Of a bucket without bytes.
  double seconds_per_byte = 0;
};

/// Counters since the world was made.
struct WorldStats {
  std::uint64_t operations = 0;     ///< Completed submissions.
  std::uint64_t buckets = 0;        ///< Collectives run for them.
  std::uint64_t payload_bytes = 0;  ///< Input bytes of completed submissions.
  std::uint64_t network_bytes_sent = 0;
  std::uint64_t network_bytes_received = 0;
  std::uint64_t control_frames_sent = 0;
  std::uint64_t sleeps = 0;  ///< Times the progress loop went to sleep.
  TopkCounters topk;
  std::vector<AllreduceCost> allreduce_costs;
  std::optional<Tuning> tuning;  ///< Where autotune has changed something.
  bool tuning_is_final = false;
};

/// What top-k compression remembers of one tensor on one rank, to be loaded again.
struct SavedCompression {
  std::uint32_t process_set = kGlobalProcessSet;
  std::string name;  ///< Of the operation.
  Bytes bytes;
};

/// Thread: any, unless said otherwise.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  /// Joins all ranks into one world. Blocks: until all have joined or the knobs' start timeout.
  LIGHTCC_EXPORT static Result<std::unique_ptr<World>> create(WorldOptions options);

  virtual const Topology& topology() const = 0;

  /// Starts the submissions as one all-or-nothing group (usually of one) and returns one handle.
  /// Errors (at once, nothing started): kInvalidArgument for what is wrong on this rank,
  /// the world's error when it is over.
  /// `waits`: the caller calls wait() next, on this thread, and so drives the operation itself;
  /// nobody else is woken for it.
  virtual Result<HandleId> submit(std::vector<Submission> submissions, bool waits) = 0;
  /// Starts the submissions, each for itself, and returns one handle for all: what other ranks put
  /// together need not be the same. Cheaper than one call for each. Errors: as of submit(), nothing
  /// started. A wait ends when all have ended, with the first error if there was one.
  virtual Result<HandleId> submit_each(std::vector<Submission> submissions) = 0;
  /// Whether `handle` is done (also true for an unknown handle).
  virtual bool poll(HandleId handle) = 0;
  /// Waits for `handle`, forgets it and returns its outcomes in submission order.
  /// `interrupted` is asked about every 100 ms; when it says true, returns kTimeout and the handle
  /// stays. Errors: kMismatch, or the world's error. Blocks: yes.
  virtual Result<std::vector<Outcome>> wait(HandleId handle,
                                            const std::function<bool()>& interrupted) = 0;

  virtual std::vector<ProcessSetInfo> process_sets() const = 0;
  virtual WorldStats stats() const = 0;

  /// Where this rank stands in the grid over which tensors of a process set are compressed; nothing
  /// where they are not, because all its ranks share a host or it does not exist.
  virtual std::optional<GridPlace> compression_place(std::uint32_t process_set) const = 0;
  /// Whether a floating-point tensor of so many bytes is compressed when that is asked for.
  virtual bool compresses(std::uint32_t process_set, std::uint64_t num_bytes) const = 0;
  /// What compression remembers on this rank. kInvalidArgument: a compressed tensor is in flight.
  virtual Result<std::vector<SavedCompression>> save_compression() const = 0;
  /// What load_compression() would take in, without doing it. Errors: as load_compression().
  virtual Result<TopkSavedTensor> check_compression(const SavedCompression& saved) const = 0;
  /// Remembers what was saved instead. kInvalidArgument: it is damaged, or its tensor is in flight.
  virtual Status load_compression(const SavedCompression& saved) = 0;
  /// Multiplies what is remembered of the tensors `names` of a process set, because their gradients
  /// will be scaled by so much more. kInvalidArgument: not a factor above 0, or one is in flight.
  virtual Status scale_compression(double factor,
                                   std::uint32_t process_set,
                                   const std::vector<std::string>& names) = 0;

  /// Leaves the world. Collective in good times: waits until all ranks have left or one has failed;
  /// pending operations fail with kShutDown. After an error it is local and immediate. Idempotent.
  virtual void shutdown() = 0;
  /// Whether the world ended with an error: another rank may be gone or hang. Also after shutdown.
  virtual bool failed() const = 0;
};

/// In the child of fork(): closes every descriptor of every World of this process and marks them
/// dead. Installed once by pthread_atfork when the first World is made.
void mark_all_worlds_dead_in_child();

}  // namespace lightcc
