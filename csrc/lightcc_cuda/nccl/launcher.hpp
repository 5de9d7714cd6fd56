// The thread that makes all calls of NCCL for one world, as comms.hpp says.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"

#include "lightcc_cuda/driver/shared_event.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
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
  /// Valid once it has ended: when the GPU had its inputs. Nothing: that was seen with its end.
  std::optional<TimePoint> began() const { return began_; }
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
  NcclOperation run_;  // Used by the launcher's thread only. Empty once it was called.

  Status status_;
  std::optional<TimePoint> began_;
  std::shared_ptr<const SharedEvent> event_;
  std::atomic<bool> is_enqueued_{false};  // Set after the event.
  std::atomic<bool> has_ended_{false};    // Set after what is said of one that has ended.
};

/// Whoever asks and the thread both hold it: the thread may be lost in a call that never returns.
class NcclLauncher {
 public:
  explicit NcclLauncher(NcclSetup setup) : setup_(std::move(setup)) {}

  /// The thread's function: makes the world's communicator, and serves until it is told to end.
  void serve() LIGHTCC_EXCLUDES(mutex_);

  void split(std::shared_ptr<NcclComm> comm, int position, int part) LIGHTCC_EXCLUDES(mutex_);
  void free(std::shared_ptr<NcclComm> comm) LIGHTCC_EXCLUDES(mutex_);
  void post(std::shared_ptr<NcclJob> job) LIGHTCC_EXCLUDES(mutex_);
  /// Ends the thread; `aborts`: at once. False: it has not ended within reason. Blocks: for that.
  bool end(bool aborts) LIGHTCC_EXCLUDES(mutex_);
  /// Whether it was waited for in vain.
  bool is_lost() LIGHTCC_EXCLUDES(mutex_);
  /// Whether the thread has ended: no communicator is left, and the GPU does nothing for one.
  bool is_over() LIGHTCC_EXCLUDES(mutex_);
  void warn(const std::string& text) const { setup_.warn(text); }

 private:
  /// Uses the world's communicator; they run one after another.
  struct Chore {
    std::shared_ptr<NcclComm> comm;
    bool frees = false;
    int position = 0;
    int part = 0;
    bool has_begun = false;
    TimePoint deadline{};
  };
  struct Running {
    std::shared_ptr<NcclJob> job;
    std::shared_ptr<const SharedEvent> event;
    const StreamHandle* stream;
    TimePoint deadline;              // From when the GPU could begin.
    std::unique_ptr<OpenSpan> span;  // Null: no timeline.
  };
  /// What the thread was asked for since it looked last.
  struct Asked {
    std::deque<Chore> chores;
    std::deque<std::shared_ptr<NcclJob>> jobs;
    bool ends = false;
    bool aborts = false;
  };

  Status serve_gpu() LIGHTCC_EXCLUDES(mutex_);
  Status make_world() LIGHTCC_EXCLUDES(mutex_);
  Status serve_requests() LIGHTCC_EXCLUDES(mutex_);
  /// Waits for something to do, or a moment where something goes on.
  Asked await(bool is_busy) LIGHTCC_EXCLUDES(mutex_);
  bool must_end() LIGHTCC_EXCLUDES(mutex_);

  // Each does what can be done now.
  void advance_chores();
  void advance_launches();
  void advance_running();

  Result<std::shared_ptr<Stream>> stream_for_comm();
  /// True when the chore is over.
  Result<bool> advance_split(Chore& chore);
  Result<bool> advance_free(Chore& chore);
  bool has_work(const NcclComm& comm) const;
  /// Calls what the job is; true when NCCL has taken it, and it is running.
  Result<bool> launch(const std::shared_ptr<NcclJob>& job);
  Status call(NcclJob& job);
  /// NCCL puts an operation on its stream some time after the call, and says when it has. Only then
  /// an event behind it means anything.
  Status finish_call(const NcclJob& job);
  /// Whether the GPU has what it begins with.
  static Result<bool> are_inputs_ready(const NcclJob& job);
  /// `is_first`: of its stream.
  Result<bool> has_ended(Running& running, bool is_first);
  void end_span(std::unique_ptr<OpenSpan>& span, const Status& status);
  /// Ends the spans of jobs that nobody waits for any more, for a timeline.
  void end_all_spans(const Status& why);
  /// Whether the call before is over.
  Result<bool> is_ready(NcclHandle* comm, const char* what) const;
  void free_all();
  void abort_all();
  /// Returns when all are over, which may be never.
  void abort(const std::vector<std::shared_ptr<NcclComm>>& comms) const;
  bool is_made(const NcclComm& comm) const;

  TimePoint deadline_from_now(Duration patience) const;
  static void finish(NcclJob& job, Status status);
  static void finish(NcclComm& comm, Status status);

  const NcclSetup setup_;
  const Clock& clock_ = Clock::system();
  // Used by the thread only.
  std::shared_ptr<const SharedGpu> gpu_;
  const Driver* driver_ = nullptr;
  const Context* context_ = nullptr;
  std::optional<GpuRows> rows_;
  std::shared_ptr<NcclComm> world_ = std::make_shared<NcclComm>();
  std::vector<std::shared_ptr<NcclComm>> comms_;  // That are, or are being made.
  std::weak_ptr<Stream> stream_;  // Shared by all of them where NCCL keeps no order.
  std::deque<Chore> chores_;
  std::deque<std::shared_ptr<NcclJob>> waiting_;
  bool is_launching_ = false;              // NCCL goes on with the first of them.
  TimePoint launch_deadline_;              // Until when it is to have ended, too.
  std::unique_ptr<OpenSpan> launch_span_;  // The launch's span, for a timeline.
  std::vector<Running> running_;

  Mutex mutex_;
  CondVar changed_;
  Asked asked_ LIGHTCC_GUARDED_BY(mutex_);
  bool is_over_ LIGHTCC_GUARDED_BY(mutex_) = false;
  bool is_lost_ LIGHTCC_GUARDED_BY(mutex_) = false;
};

}  // namespace lightcc::cuda
