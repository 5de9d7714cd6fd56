// Everything of a World that only the driver of the progress loop touches: the control tree, the
// sequencer (on rank 0), the executor, liveness. step() does what can be done now.
//
// The world ends in one of two ways: in good order (one rank leaves, rank 0 announces it, what was
// announced before still runs, the rest fails with kShutDown), or in error (the first rank to know
// tells its neighbours in the tree, who pass it on; everything fails with that error).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/sequencer.hpp"
#include "lightcc/engine/autotune_log.hpp"
#include "lightcc/engine/executor.hpp"
#include "lightcc/engine/liveness.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/operation_table.hpp"
#include "lightcc/engine/timeline.hpp"
#include "lightcc/engine/waker.hpp"
#include "lightcc/fusion/autotuner.hpp"

namespace lightcc {

/// Thread: one at a time (World's drive mutex), unless said otherwise.
class Core {
 public:
  /// `operations` and `clock` outlive the core.
  static Result<std::unique_ptr<Core>> make(Membership world,
                                            const Knobs& knobs,
                                            const Clock& clock,
                                            OperationTable& operations);

  /// Does what can be done now. True when anything moved.
  bool step();
  /// Somebody may have woken this rank: the next step looks at every descriptor.
  void note_wakeup() { look_at_descriptors_ = true; }
  /// True while buckets run or operations wait: a reason to look again soon.
  bool busy() const { return !executor_->idle() || !operations_.empty(); }
  /// For a driver that is about to sleep, or to leave: from now on peers ring, and the waker's
  /// descriptors tell of everything else. False: something moved meanwhile, so step() again.
  bool prepare_to_sleep();
  /// How long nothing needs to happen by itself.
  Duration time_to_tick() const;

  Waker& waker() { return *waker_; }
  Executor& executor() { return *executor_; }
  Timeline& timeline() { return timeline_; }
  const Topology& topology() const { return world_.topology; }

  /// Asks rank 0 to end the world. Thread: any.
  void request_leave() { leave_requested_.store(true, std::memory_order_release); }
  /// The world is over, in one way or the other. Thread: any.
  bool over() const { return over_.load(std::memory_order_acquire); }
  /// It is over because of an error, not because a rank left. Thread: any.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// After an end in good order: reads the control sockets to their ends, until `deadline` at most.
  /// A socket that is closed with unread bytes is reset, and the reset may overtake this rank's
  /// last words on their way. Blocks: yes.
  void read_to_the_end(TimePoint deadline);
  /// Ends the world in error from here.
  void fail(const Status& error);

  /// As they are now; a change makes another table. Never null. Thread: any.
  std::shared_ptr<const ProcessSetTable> process_sets() const LIGHTCC_EXCLUDES(sets_mutex_);
  void fill_stats(WorldStats& stats) const;

 private:
  /// How this rank sleeps now. It waits while it is busy, others may have to wait for it, or it
  /// records when they report.
  SleepState sleep_state() const;

  struct LocalSlot {
    Signature signature;
    std::vector<std::int64_t> per_member;
    std::optional<Request> own;  // What this rank last asked for under it.
  };

  Core(Membership world, const Knobs& knobs, const Clock& clock, OperationTable& operations);
  Status start(const Knobs& knobs);
  Result<bool> try_step();

  // Up the tree.
  Status report_new();
  Status send_reports(std::vector<Report> reports);
  bool concerns_idle_parent(const Report& report) const;
  Report report_of(const InFlight& operation) const;
  const Signature* signature_of(const Report& report) const;
  // Links.
  Result<bool> read_links();
  Result<bool> read_link(ControlLink& link);
  Result<bool> flush_links();
  Status on_frame(ControlLink& link, Frame frame);
  void broadcast(const Frame& frame, const ControlLink* except);
  // Down the tree.
  Status announce();
  // Autotune, on rank 0.
  void set_up_autotune(const Knobs& knobs, FusionRule rule);
  void autotune(const Execute& execute);
  Status apply(Command& command);
  void replace_process_sets(ProcessSetTable table) LIGHTCC_EXCLUDES(sets_mutex_);
  Status apply_execute(Execute& execute);
  Result<std::optional<BucketTensor>> resolve(AnnouncedTensor& announced,
                                              std::uint32_t process_set);
  void remember(std::uint32_t slot, const BucketTensor& tensor);
  void complete_by_name(std::uint32_t process_set,
                        const std::string& name,
                        const Status& status,
                        std::int32_t value);
  // Descriptors, time, ends.
  Result<bool> service_descriptors();
  Status on_descriptor(std::uint64_t tag);
  Status on_local_socket(std::size_t place);
  Status on_death(std::size_t place);
  Status tick();
  Status peer_gone(const Status& error) const;
  Status own_words(const Status& error) const;
  bool may_be_secondhand(const Status& error) const;
  void suspect(const Status& error);
  bool await_news();
  void check_closing();

  Membership world_;
  const Clock& clock_;
  OperationTable& operations_;
  Duration peer_timeout_;
  Timeline timeline_;
  std::optional<Waker> waker_;
  std::optional<Liveness> liveness_;
  std::unique_ptr<Sequencer> sequencer_;
  std::unique_ptr<Autotuner> autotuner_;  // On rank 0, until it is done.
  std::unique_ptr<AutotuneLog> autotune_log_;
  std::optional<Tune> tune_;  // The last that was announced.
  std::unique_ptr<Executor> executor_;
  mutable Mutex sets_mutex_;  // Taken alone; written by the driver only.
  std::shared_ptr<const ProcessSetTable> process_sets_ LIGHTCC_GUARDED_BY(sets_mutex_);
  std::vector<LocalSlot> slots_;
  std::vector<Report> relayed_;  // From children, to go up in one frame.
  TimePoint next_tick_;
  std::uint32_t steps_ = 0;
  bool look_at_descriptors_ = true;
  std::uint64_t frames_sent_ = 0;
  std::atomic<bool> leave_requested_{false};
  bool leave_reported_ = false;
  bool closing_ = false;
  std::int32_t closed_by_ = -1;
  TimePoint closing_deadline_;
  std::optional<Status> suspicion_;  // What ends the world unless there is better news in time.
  TimePoint news_deadline_;
  bool is_certain_ = false;  // The error at hand names the first culprit.
  std::atomic<bool> over_{false};
  std::atomic<bool> failed_{false};
};

}  // namespace lightcc
