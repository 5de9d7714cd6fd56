// Everything of a World that only the driver of the progress loop touches: the control plane's
// driver. It owns the links of the control tree, descriptors and the executor, and tells the
// machine (control/control_plane) what arrived and what time it is. step() does what can be done
// now.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/control_plane.hpp"
#include "lightcc/engine/executor.hpp"
#include "lightcc/engine/liveness.hpp"
#include "lightcc/engine/loop_bell.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/one_shot_allreduce.hpp"
#include "lightcc/engine/operation_table.hpp"
#include "lightcc/engine/progress_loop.hpp"
#include "lightcc/engine/timeline/timeline.hpp"
#include "lightcc/engine/waker.hpp"

namespace lightcc {

/// Thread: one at a time (ProgressLoop's mutex), unless said otherwise.
class Core final : public Driven {
 public:
  /// `operations`, `residuals` and `clock` outlive the core. `joining`: null for a world of one
  /// rank.
  static Result<std::unique_ptr<Core>> make(Membership world,
                                            const WorldOptions& options,
                                            const Joining* joining,
                                            const Clock& clock,
                                            OperationTable& operations,
                                            ResidualStore& residuals);

  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core() override;

  bool step() override { return step(true); }
  void note_wakeup() override { look_at_descriptors_ = true; }
  bool busy() const override { return !executor_->idle() || !operations_.empty(); }
  bool prepare_to_sleep() override;
  Duration time_to_look() const override;
  bool over() const override { return over_.load(std::memory_order_acquire); }
  Waker& waker() override { return *waker_; }

  Executor& executor() { return *executor_; }
  const Planes& planes() const { return *planes_; }
  const Topology& topology() const { return world_.topology; }

  /// Asks rank 0 to end the world. Thread: any.
  void request_leave() { leave_requested_.store(true, std::memory_order_release); }
  /// It is over because of an error, not because a rank left. Thread: any.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// After an end in good order: reads the control sockets to their ends, until `deadline` at most.
  /// A socket that is closed with unread bytes is reset, and the reset may overtake this rank's
  /// last words on their way. Blocks: yes.
  void read_to_the_end(TimePoint deadline);
  /// Errors: of Timeline::start().
  Status start_timeline(const TimelineOptions& options);
  void stop_timeline();
  /// Thread: any.
  bool is_recording() const { return timeline_.is_on(); }
  /// Ends the world in error from here.
  void fail(const Status& error);

  /// As they are now; a change makes another table. Never null. Thread: any.
  std::shared_ptr<const ProcessSetTable> process_sets() const LIGHTCC_EXCLUDES(sets_mutex_);
  void fill_stats(WorldStats& stats) const;

 private:
  Core(Membership world, const Clock& clock, OperationTable& operations);
  Status start(const WorldOptions& options, const Joining* joining, ResidualStore& residuals);
  Status watch_descriptors();
  /// How this rank sleeps now. It waits while it is busy, others may have to wait for it, or it
  /// records when they report.
  SleepState sleep_state() const;

  /// Without a look, nothing is asked of the kernel: a driver that sleeps next hears of it then.
  bool step(bool looks);
  Result<bool> try_step(bool looks);
  bool listen();
  // Into the machine.
  Result<bool> advance_one_shot();
  Result<bool> report_new();
  /// `input`: as in ControlPlane::submit().
  void submit(InFlight& operation, std::span<const std::byte> input);
  Result<bool> read_links(bool looks);
  bool read_link(LinkIndex index);
  bool flush_links();
  void on_broken_link(LinkIndex index, const Status& error);
  Status tick();
  // Out of the machine.
  void act();
  void send(const OutgoingFrame& frame);
  Status apply(ControlAction& action);
  void end(const EndWorld& end);
  void publish_process_sets() LIGHTCC_EXCLUDES(sets_mutex_);
  // Descriptors.
  bool are_descriptors_due();
  Result<bool> service_descriptors();
  Status on_descriptor(std::uint64_t tag);
  void on_death(std::size_t index);
  void look_at_departed(TimePoint now);
  bool may_close() const;

  ControlLink& link(LinkIndex index);
  bool children_have_backlog() const;

  Membership world_;
  const Clock& clock_;
  OperationTable& operations_;
  Timeline timeline_;
  std::unique_ptr<ControlPlane> control_;
  std::optional<Waker> waker_;
  const std::shared_ptr<LoopBell> bell_ = std::make_shared<LoopBell>();
  std::optional<Liveness> liveness_;
  // Watched processes that are gone, and when that is an error in spite of all.
  std::vector<std::pair<std::size_t, TimePoint>> departed_;
  std::optional<Planes> planes_;  // They outlive all Works.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<OneShotAllreduce> one_shot_;  // Null: everything is reported.
  mutable Mutex sets_mutex_;                    // Taken alone; written by the driver only.
  std::shared_ptr<const ProcessSetTable> process_sets_ LIGHTCC_GUARDED_BY(sets_mutex_);
  Bytes encoded_;  // One frame, on its way to several links.
  std::uint32_t steps_ = 0;
  bool look_at_descriptors_ = true;
  bool is_transport_watched_ = false;
  std::uint64_t frames_sent_ = 0;
  std::atomic<bool> leave_requested_{false};
  bool leave_reported_ = false;
  std::atomic<bool> over_{false};
  std::atomic<bool> failed_{false};
};

}  // namespace lightcc
