// Communicators of NCCL on one GPU, and the threads that make all calls on them.
//
// NCCL wants operations of several communicators on one GPU to begin in the same order on all
// ranks: they are called in the order of start(). On several streams that is not enough. A kernel
// waits for peers where it is, so that another one may find no multiprocessor. Where two GPUs begin
// with different ones, both wait for ever. So all are on one stream, unless NCCL itself sees to it
// that they also begin in order. Its calls may block for long, as the first operation connects to
// peers, so none is made by the thread that drives the progress loop. Communicators are blocking:
// NCCL without blocking (`blocking = 0`) hangs in releases before 2.27, and torch uses none. What a
// dead peer would block for ever ends when a second thread aborts the communicator.
//
// All are split off one communicator of the world, which carries nothing itself: that takes no
// exchange between ranks but NCCL's own, so that process sets can be made at any time. All ranks
// ask for splits in one order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/loop_bell.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/nccl/library.hpp"

namespace lightcc::cuda {

/// What the communicator of the world is made of.
struct NcclSetup {
  NcclLibrary library;
  /// Rung when a Work can go on.
  std::shared_ptr<LoopBell> bell = std::make_shared<LoopBell>();
  NcclUniqueId id{};  ///< The one that rank 0 made.
  int rank = 0;
  int size = 1;
  std::string driver = kDriverFile;
  int device = 0;
  Duration start_patience{};      ///< For making a communicator.
  Duration operation_patience{};  ///< For freeing one, and for an operation; 0: without end.
  /// NCCL begins operations of several communicators in the order of calls, on the GPU as well.
  bool begins_in_order = false;
};

class NcclLauncher;

/// A communicator of a lane of a process set.
class NcclComm {
 public:
  NcclComm() = default;
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  ~NcclComm() = default;

  /// Whether it is made. Errors: of the driver, of NCCL. Thread: any.
  Result<bool> is_made() const;

 private:
  friend class NcclCalls;
  friend class NcclLauncher;

  std::atomic<NcclHandle*> handle_{nullptr};  // Whoever takes it destroys or aborts it.
  std::size_t jobs_ = 0;                      // That have not ended; by the launcher's lock.
  TimePoint asked_;                           // When its error was, by the thread that watches.
  std::shared_ptr<Stream> stream_;            // Made before the status is known.
  // Used by the thread that launches, while there is a job.
  std::shared_ptr<std::byte> scratch_;  // Goes before its stream.
  std::size_t scratch_bytes_ = 0;
  std::vector<NcclOp> ops_;  // To be destroyed when they are called.

  std::atomic<bool> is_done_{false};  // Set after the status.
  Status status_;
};

/// What an operation calls NCCL with, on the thread that launches.
class NcclCalls {
 public:
  NcclCalls(const NcclLibrary& library,
            const Driver& driver,
            const KernelTable& kernels,
            NcclComm& comm)
      : library_(library), driver_(driver), kernels_(kernels), comm_(comm) {}

  const NcclFunctions& nccl() const { return library_.call(); }
  /// Null once it is aborted, which NCCL refuses. To be asked for each call.
  NcclHandle* comm() const { return comm_.handle_; }
  StreamHandle* stream() const { return comm_.stream_->get(); }
  Status check(NcclCode code, const char* what) const { return library_.check(code, what); }
  /// Makes the calls of `body` begin together.
  Status in_group(const std::function<Status()>& body) const;
  /// Memory on the GPU which is the operation's until the next call: in the order of the stream.
  Result<std::byte*> scratch(std::size_t bytes) const;
  /// The same, filled with zeros.
  Result<std::byte*> zeros(std::size_t bytes) const;
  /// A sum of what is multiplied by `factor` before. Of a floating-point type.
  Result<NcclOp> scaled_sum(NcclType type, double factor) const;
  // In the order of the stream.

  Status copy(std::byte* out, const std::byte* in, std::size_t bytes) const;
  Status copy_bucket(std::byte* bucket,
                     std::span<const BucketPart> parts,
                     Copying direction) const {
    return cuda::copy_bucket(driver_, kernels_, gpu_address(bucket), parts, direction, stream());
  }

 private:
  const NcclLibrary& library_;
  const Driver& driver_;
  const KernelTable& kernels_;
  NcclComm& comm_;
};

using NcclOperation = std::function<Status(const NcclCalls&)>;

/// The communicators of one world. Thread: one at a time.
class NcclComms {
 public:
  /// Starts the threads, which make the communicator of the world. Errors: kSystem.
  static Result<std::unique_ptr<NcclComms>> make(const NcclSetup& setup);
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;
  /// Frees all communicators. Waits for that, but not for ever: a peer that is gone never comes.
  ~NcclComms();

  /// What came of the world's communicator and those that were split off it; nothing while they are
  /// being made. Errors: of the driver, of NCCL. Thread: any. Blocks: for `patience` at most.
  std::optional<Status> opened(Duration patience) const;
  /// Aborts all communicators. Nothing else is called then. Blocks: for that, but not for ever.
  void abort();
  /// All ranks ask for the same, in the same order. Members give their place, others a number below
  /// 0, and nothing comes of it for them. Members of one `part` have a communicator together.
  std::shared_ptr<NcclComm> split(int position, int part = 0);
  /// No Work on it is left but of operations that are enqueued; it waits for these.
  void free(std::shared_ptr<NcclComm> comm);
  /// Begins an operation behind all others that were started. `what` is for messages. A Work that
  /// is dropped before its end aborts all communicators of this rank, and blocks for that, but not
  /// for ever.
  std::unique_ptr<Work> start(std::shared_ptr<NcclComm> comm, std::string what, NcclOperation run);
  /// Copies on the GPU in the order of the operation that is started next, and before it.
  void copy_before_next(std::byte* out, const std::byte* in, std::size_t bytes);
  /// Has the GPU wait for `inputs` before that. False: it can wait for one of them only on the
  /// host.
  bool begin_behind(const std::vector<std::shared_ptr<ReadyEvent>>& inputs);

 private:
  explicit NcclComms(std::shared_ptr<NcclLauncher> launcher) : launcher_(std::move(launcher)) {}

  struct Copy {
    std::byte* out;
    const std::byte* in;
    std::size_t bytes;
  };

  std::shared_ptr<NcclLauncher> launcher_;
  std::unique_ptr<std::thread> thread_;
  std::vector<Copy> copies_;
  std::vector<std::shared_ptr<ReadyEvent>> inputs_;
};

}  // namespace lightcc::cuda
