// The threads that call NCCL for one world, as comms.hpp says.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"

#include "lightcc_cuda/driver/event_notifier.hpp"
#include "lightcc_cuda/driver/shared_event.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/wakeup.hpp"
#include "lightcc_cuda/rows/gpu_rows.hpp"

namespace lightcc::cuda {

/// One operation, from start() to its end on the GPU.
class NcclJob {
 public:
  /// `what` is for messages. The GPU waits for `inputs`, events of GPUs, before it begins.
  NcclJob(std::shared_ptr<NcclComm> comm,
          std::string what,
          NcclOperation run,
          std::vector<std::shared_ptr<ReadyEvent>> inputs)
      : comm_(std::move(comm)),
        what_(std::move(what)),
        inputs_(std::move(inputs)),
        run_(std::move(run)) {}

  /// The GPU has done it, or it failed.
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  /// Valid once it has ended. If it failed, the GPU may still use memory.
  const Status& status() const { return status_; }
  /// What passes when the GPU has done it. Null: NCCL has not taken it yet.
  std::shared_ptr<const SharedEvent> event() const {
    return is_enqueued_.load(std::memory_order_acquire) ? event_ : nullptr;
  }

 private:
  friend class NcclLauncher;

  const std::shared_ptr<NcclComm> comm_;
  const std::string what_;
  const std::vector<std::shared_ptr<ReadyEvent>> inputs_;
  const std::shared_ptr<DeviceTrace> trace_ = current_device_trace();
  NcclOperation run_;  // Used by the thread that launches.

  Status status_;
  std::shared_ptr<const SharedEvent> event_;
  std::shared_ptr<const Passing> passing_;  // By which the GPU passes it.
  std::atomic<bool> is_enqueued_{false};    // Set after the event.
  std::atomic<bool> has_ended_{false};      // Set after what is said of one that has ended.
};

inline Status was_aborted(const char* what) {
  return {ErrorCode::kShutDown, std::string(what) + " was aborted"};
}

/// Whoever asks and the threads hold it: a thread may be lost in a call that never returns.
///
/// One thread launches operations, one makes and frees communicators, and one watches both: it sees
/// the ends of operations, errors and deadlines, and aborts what the others wait for.
class NcclLauncher : public std::enable_shared_from_this<NcclLauncher> {
 public:
  explicit NcclLauncher(NcclSetup setup) : setup_(std::move(setup)) {}

  /// The function of the thread that watches: starts the others, and serves until the end.
  void serve() LIGHTCC_EXCLUDES(mutex_);

  void split(std::shared_ptr<NcclComm> comm, int position, int part) LIGHTCC_EXCLUDES(mutex_);
  void free(std::shared_ptr<NcclComm> comm) LIGHTCC_EXCLUDES(mutex_);
  void post(const std::shared_ptr<NcclJob>& job) LIGHTCC_EXCLUDES(mutex_);
  /// Ends the threads; `aborts`: at once. False: they have not ended within reason. Blocks: for
  /// that.
  bool end(bool aborts) LIGHTCC_EXCLUDES(mutex_);
  /// Whether they were waited for in vain.
  bool is_lost() LIGHTCC_EXCLUDES(mutex_);
  /// Whether they have ended: no communicator is left, and the GPU does nothing for one.
  bool is_over() LIGHTCC_EXCLUDES(mutex_);
  /// As of NcclComms.
  std::optional<Status> opened(Duration patience) LIGHTCC_EXCLUDES(mutex_);

 private:
  /// What the world's communicator is used for; they run one after another.
  struct Chore {
    std::shared_ptr<NcclComm> comm;
    bool frees = false;
    int position = 0;
    int part = 0;
  };
  struct Running {
    std::shared_ptr<NcclJob> job;
    TimePoint deadline;              // From when the GPU could begin.
    std::unique_ptr<OpenSpan> span;  // Null: no timeline.
    TimePoint next_look;             // For what no thread of the driver tells.
    bool has_inputs = false;

    const Stream* stream() const { return job->comm_->stream_.get(); }
  };
  /// A call of NCCL that has not returned, as the thread that watches sees it.
  struct Call {
    std::string what;                // Empty: there is none.
    std::shared_ptr<NcclJob> job{};  // That it launches.
    TimePoint began{};
    TimePoint deadline{};
    bool has_failed = false;  // What it is for was told so.

    bool goes_on() const { return !what.empty(); }
  };

  // ---- The thread that watches.
  Status serve_gpu() LIGHTCC_EXCLUDES(mutex_);
  /// OK: it was told to end, and nothing is left.
  Status watch() LIGHTCC_EXCLUDES(mutex_);
  /// Waits for something to look at. Nothing: all goes on.
  std::optional<Status> await() LIGHTCC_EXCLUDES(mutex_);
  std::optional<Status> end_in_order() LIGHTCC_REQUIRES(mutex_);
  void check_running() LIGHTCC_EXCLUDES(mutex_);
  void check_calls() LIGHTCC_EXCLUDES(mutex_);
  /// Whether the GPU has what it begins with.
  static Result<bool> are_inputs_ready(const NcclJob& job);
  /// `is_first`: of its stream.
  Result<bool> has_ended(Running& running, bool is_first);
  Status error_of(NcclComm& comm, const std::string& what);
  /// Returns when all communicators are aborted, which may be never.
  void abort_all(const Context& context) LIGHTCC_EXCLUDES(mutex_);
  void end_all(const Status& why) LIGHTCC_EXCLUDES(mutex_);
  /// Tells all that wait for a thread, and those that come later.
  void refuse_all(const Status& why) LIGHTCC_REQUIRES(mutex_);

  // ---- The thread that launches.
  void launch_all(const std::shared_ptr<const SharedGpu>& gpu) LIGHTCC_EXCLUDES(mutex_);
  std::shared_ptr<NcclJob> next_job() LIGHTCC_EXCLUDES(mutex_);
  /// Where there is a timeline, `span` is what is to end with the operation.
  Status launch(NcclJob& job,
                const std::shared_ptr<const SharedGpu>& gpu,
                const KernelTable& kernels,
                EventNotifier& notifier,
                std::unique_ptr<OpenSpan>& span) LIGHTCC_EXCLUDES(mutex_);

  // ---- The thread that makes and frees communicators (launcher_comms.cpp).
  void keep_comms(const std::shared_ptr<const SharedGpu>& gpu) LIGHTCC_EXCLUDES(mutex_);
  Status make_world() LIGHTCC_EXCLUDES(mutex_);
  std::optional<Chore> next_chore() LIGHTCC_EXCLUDES(mutex_);
  Status split_off(const Chore& chore, const Driver& driver) LIGHTCC_EXCLUDES(mutex_);
  Status free_comm(const std::shared_ptr<NcclComm>& comm) LIGHTCC_EXCLUDES(mutex_);
  Result<std::shared_ptr<Stream>> stream_for_comm(const Driver& driver);
  /// Where the end has begun meanwhile, it aborts the communicator.
  Status keep(const std::shared_ptr<NcclComm>& comm, NcclHandle* handle) LIGHTCC_EXCLUDES(mutex_);

  /// Has the progress loop look at what has changed.
  void ring() const { setup_.bell->ring(); }
  void begin_call(Call& call, Call what, Duration patience) LIGHTCC_REQUIRES(mutex_);
  void end_call(Call& call) LIGHTCC_REQUIRES(mutex_);
  bool is_in_use(const NcclComm& comm) const LIGHTCC_REQUIRES(mutex_);
  TimePoint deadline_from_now(Duration patience) const;
  /// What has ended before stays as it is.
  void finish(NcclJob& job, Status status) LIGHTCC_REQUIRES(mutex_);
  void finish(NcclComm& comm, Status status) LIGHTCC_REQUIRES(mutex_);
  void end_span(std::unique_ptr<OpenSpan> span, const Status& status) LIGHTCC_REQUIRES(mutex_);

  const NcclSetup setup_;
  const Clock& clock_ = Clock::system();
  std::vector<Running> running_;  // Used by the thread that watches only.
  std::weak_ptr<Stream> stream_;  // Shared by all communicators where NCCL keeps no order.

  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();  // For who watches.

  Mutex mutex_;
  CondVar changed_;  // For who waits for the start or the end.
  CondVar for_launches_;
  CondVar for_chores_;
  std::deque<std::shared_ptr<NcclJob>> jobs_ LIGHTCC_GUARDED_BY(mutex_);
  std::deque<Chore> chores_ LIGHTCC_GUARDED_BY(mutex_);       // With the one under way.
  std::vector<Running> launched_ LIGHTCC_GUARDED_BY(mutex_);  // Since it was looked last.
  Call launch_ LIGHTCC_GUARDED_BY(mutex_);
  Call chore_ LIGHTCC_GUARDED_BY(mutex_);
  std::shared_ptr<NcclComm> world_ LIGHTCC_GUARDED_BY(mutex_);               // Null: not made.
  std::vector<std::shared_ptr<NcclComm>> comms_ LIGHTCC_GUARDED_BY(mutex_);  // That are made.
  std::optional<GpuRows> rows_ LIGHTCC_GUARDED_BY(mutex_);
  Status failure_ LIGHTCC_GUARDED_BY(mutex_);               // Why communicators cannot be made.
  std::optional<Status> ended_ LIGHTCC_GUARDED_BY(mutex_);  // What is told to who comes later.
  TimePoint progress_ LIGHTCC_GUARDED_BY(mutex_);           // When a call was last over.
  bool must_end_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool must_abort_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool is_freeing_ LIGHTCC_GUARDED_BY(mutex_) = false;  // All communicators, in order.
  bool is_ending_ LIGHTCC_GUARDED_BY(mutex_) = false;   // No thread begins a call any more.
  bool is_over_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool is_lost_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool has_warned_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool is_idle_ LIGHTCC_GUARDED_BY(mutex_) = false;  // Who watches sleeps until somebody rings.
};

}  // namespace lightcc::cuda
