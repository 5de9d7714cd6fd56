// Who drives the progress loop.
//
// Each World has one thread of its own. It sleeps until something happens, steps the core until
// nothing moves, and sleeps again. A thread that waits for a handle takes the loop over instead of
// sleeping until the own thread has done its work (a hand-over between threads costs more than a
// small collective). Whoever holds drive_mutex_ drives; the own thread holds it only while awake,
// and gives it up when a waiting thread wants it. Before the loop is left without a driver the
// SleepWord is raised, so that peers ring, and the core is stepped once more.
//
// Completions run after drive_mutex_ is given up, on the thread that drove: meanwhile another may
// drive. A handle is a completion of the engine's own, which only sets a flag, so it costs none of
// that.
#include "lightcc/engine/world.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include "lightcc/base/log.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/completion.hpp"
#include "lightcc/engine/core.hpp"
#include "lightcc/engine/handle_on_device.hpp"
#include "lightcc/engine/spin_policy.hpp"
#include "lightcc/engine/submission.hpp"
#include "lightcc/engine/world_compression.hpp"
#include "lightcc/engine/world_report.hpp"

namespace lightcc {
namespace {

std::atomic<bool> dead_in_child{false};
// Worlds that exist in this process: a child forked while there are none may have its own.
std::atomic<int> worlds_alive{0};

// How often a waiting thread asks whether it was interrupted.
constexpr Duration kInterruptInterval = std::chrono::milliseconds(100);
// How long to wait for other hosts to close their ends of a world that ended in good order.
constexpr Duration kFarewell = std::chrono::seconds(2);
// How often the own thread of a world that is over looks whether it may end.
constexpr Duration kOverInterval = std::chrono::milliseconds(500);
// How often one that waits while another one drives looks what devices have finished.
constexpr Duration kDeviceInterval = std::chrono::milliseconds(1);

// What the environment asks for from the start.
std::optional<TimelineOptions> timeline_asked_for(const Knobs& knobs) {
  const bool all_ranks = !knobs.timeline_of_all.empty();
  const std::string& path = all_ranks ? knobs.timeline_of_all : knobs.timeline;
  if (path.empty() || path == "DYNAMIC") {
    return std::nullopt;
  }
  return TimelineOptions{path, knobs.timeline_marks_cycles, all_ranks};
}

class WorldImpl final : public World {
 public:
  WorldImpl(WorldOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock), operations_(options_.epoch.rank) {
    worlds_alive.fetch_add(1, std::memory_order_relaxed);
  }
  ~WorldImpl() override {
    worlds_alive.fetch_sub(1, std::memory_order_relaxed);
    if (dead_in_child.load(std::memory_order_relaxed)) {
      // The thread does not exist here and the descriptors are closed: nothing to undo.
      (void)core_.release();
      (void)thread_.release();
      return;
    }
    (void)shutdown();
  }
  WorldImpl(const WorldImpl&) = delete;
  WorldImpl& operator=(const WorldImpl&) = delete;

  Status start() {
    LIGHTCC_RETURN_IF_ERROR(check_epoch(options_.epoch));
    if (options_.epoch.size == 1) {
      return start_joined(nullptr);
    }
    const TimePoint deadline =
        clock_.now() + std::chrono::duration_cast<Duration>(
                           std::chrono::duration<double>(options_.knobs.start_timeout_s));
    LIGHTCC_ASSIGN_OR_RETURN(
        const auto attendance,
        options_.epoch.store->attend(options_.epoch.key_prefix, own_will(), deadline));
    const Joining joining{
        *options_.epoch.store, *attendance, options_.epoch.rank, options_.epoch.size, deadline};
    Status started = start_joined(&joining);
    if (started.ok()) {
      started = meet_at_the_start(joining);
    }
    if (started.ok()) {
      return {};
    }
    started = give_up(joining, started);
    if (core_ != nullptr) {
      const MutexLock lock(drive_mutex_);
      core_->fail(started);  // So that nobody waits for this rank, nor it for them.
    }
    return started;
  }

  const Topology& topology() const override { return core_->topology(); }

  Status submit(std::vector<Operation> operations,
                Completion done,
                const SubmitOptions& options) override {
    const auto state = std::make_shared<HandleState>();
    state->callbacks.emplace_back([state, done = std::move(done)] {
      done(state->status.ok() ? Result<std::vector<Outcome>>(std::move(state->outcomes))
                              : Result<std::vector<Outcome>>(state->status));
    });
    const auto started = submit_checked(std::move(operations), options, state);
    if (!started.ok()) {
      state->callbacks.clear();  // They hold the state.
    }
    return started.status();
  }

  Result<Handle> start(std::vector<Operation> operations, const SubmitOptions& options) override {
    return submit_checked(std::move(operations), options, std::make_shared<HandleState>());
  }

  void call_when_done(const Handle& handle, std::function<void()> callback) override {
    if (!operations_.call_when_done(*handle, callback)) {
      run_completion(callback);
    }
  }

  bool poll(const Handle& handle) override {
    return handle->done.load(std::memory_order_acquire) &&
           (core_->over() || on_device(*handle) != OnDevice::kGoesOn);
  }

  Result<std::vector<Outcome>> wait(const Handle& handle,
                                    const std::function<bool()>& interrupted,
                                    Until until) override {
    const auto is_done = [&] { return handle->done.load(std::memory_order_acquire); };
    if (!is_done() && is_in_completion()) {
      return refused_in_completion("waiting for an operation");
    }
    while (!is_done()) {
      LIGHTCC_RETURN_IF_ERROR(check_alive());
      help(is_done, handle.get());
      if (interrupted && !is_done() && interrupted()) {
        return make_error(ErrorCode::kTimeout, "the wait was interrupted");
      }
    }
    if (!handle->status.ok()) {
      // What else the call began may go on, on a device.
      (void)await_device(*handle, Until::kFinished, {});
      return handle->status;
    }
    LIGHTCC_RETURN_IF_ERROR(await_device(*handle, until, interrupted));
    return std::move(handle->outcomes);
  }

  Result<bool> order(const Handle& handle, std::uintptr_t stream) override {
    return order_after(*handle, stream);
  }

  bool uses_memory(const Handle& handle) const override { return lightcc::uses_memory(*handle); }

  Status finish(const std::function<bool()>& interrupted) override {
    const UnfinishedBuckets& unfinished = core_->executor().unfinished();
    const std::uint64_t count = unfinished.added();
    const auto is_done = [&] { return core_->over() || unfinished.has_finished(count); };
    LIGHTCC_RETURN_IF_ERROR(help_until(is_done, interrupted));
    return count > 0 && core_->failed() ? operations_.error() : Status();
  }

  std::vector<ProcessSetInfo> process_sets() const override {
    std::vector<ProcessSetInfo> infos;
    const auto table = core_->process_sets();
    for (const auto& [id, ranks] : table->sets()) {
      infos.push_back({id, *ranks});
    }
    return infos;
  }

  WorldStats stats() const override {
    WorldStats stats;
    stats.operations = operations_.completed();
    stats.payload_bytes = operations_.payload_bytes();
    stats.in_flight = operations_.in_flight();
    stats.sleeps = sleeps_.load(std::memory_order_relaxed);
    const MutexLock lock(drive_mutex_);
    core_->fill_stats(stats);
    return stats;
  }

  std::optional<GridPosition> compression_position(std::uint32_t process_set) const override {
    const MutexLock lock(drive_mutex_);
    return core_->executor().topk_position(process_set);
  }

  bool compresses(std::uint32_t process_set, std::uint64_t num_bytes) const override {
    return num_bytes >= static_cast<std::uint64_t>(options_.knobs.topk_min_bytes) &&
           compression_position(process_set).has_value();
  }

  Result<std::vector<SavedCompression>> save_compression() const override {
    const MutexLock lock(drive_mutex_);
    return lightcc::save_compression(core_->executor().topk());
  }

  Result<TopkSavedTensor> check_compression(const SavedCompression& saved) const override {
    const MutexLock lock(drive_mutex_);
    return core_->executor().topk().check({saved.process_set, saved.name}, saved.bytes);
  }

  Status load_compression(const SavedCompression& saved) override {
    const MutexLock lock(drive_mutex_);
    return core_->executor().topk().load({saved.process_set, saved.name}, saved.bytes);
  }

  Status scale_compression(double factor,
                           std::uint32_t process_set,
                           const std::vector<std::string>& names) override {
    const MutexLock lock(drive_mutex_);
    return lightcc::scale_compression(core_->executor().topk(), factor, process_set, names);
  }

  Status start_timeline(const TimelineOptions& options) override {
    const MutexLock lock(drive_mutex_);
    return core_->start_timeline(options);
  }

  void stop_timeline() override {
    const MutexLock lock(drive_mutex_);
    core_->stop_timeline();
  }

  bool is_recording() const override { return core_->is_recording(); }
  bool failed() const override { return core_->failed(); }

  Status shutdown() override {
    if (thread_ == nullptr || !check_alive().ok()) {
      return {};
    }
    if (is_in_completion()) {
      return refused_in_completion("leaving the world");
    }
    const UnfinishedBuckets& unfinished = core_->executor().unfinished();
    const bool has_unfinished = !core_->over() && !unfinished.has_finished(unfinished.added());
    core_->request_leave();
    core_->waker().wake();
    const TimePoint deadline =
        clock_.now() + std::chrono::duration_cast<Duration>(
                           std::chrono::duration<double>(2 * options_.knobs.peer_timeout_s));
    while (!core_->over() && clock_.now() < deadline) {
      help([&] { return core_->over(); }, nullptr);
    }
    if (!core_->over()) {
      const MutexLock lock(drive_mutex_);
      core_->fail(make_error(ErrorCode::kTimeout, "no other rank answered the shutdown"));
    }
    stop_.store(true, std::memory_order_release);
    core_->waker().wake();
    thread_->join();
    thread_.reset();
    run_completions();
    while (completing_threads_.load(std::memory_order_acquire) > 0) {
      operations_.wait_for_change(never(), kInterruptInterval);
    }
    stop_timeline();
    core_->read_to_the_end(clock_.now() + kFarewell);
    return has_unfinished && core_->failed() ? operations_.error() : Status();
  }

 private:
  static Status check_alive() {
    return dead_in_child.load(std::memory_order_relaxed)
               ? make_error(ErrorCode::kShutDown,
                            "this process was forked from a rank: it is not a rank itself and "
                            "cannot take part in collectives")
               : Status();
  }

  Status start_thread() {
    try {
      thread_ = std::make_unique<std::thread>([this] { run(); });
    } catch (const std::system_error& error) {
      return make_system_error(ErrorCode::kSystem,
                               error.code().value(),
                               "cannot start the engine's thread (address space for its stack, or "
                               "the number of processes, is limited)");
    }
    return {};
  }

  Status own_will() const {
    return {ErrorCode::kPeerFailed,
            "rank " + std::to_string(options_.epoch.rank) +
                " ended, or lost its connection to the store, during init()",
            options_.epoch.rank};
  }

  Status start_joined(const Joining* joining) {
    LIGHTCC_ASSIGN_OR_RETURN(Membership membership, join_world(options_, joining));
    if (log_enabled(LogLevel::kInfo)) {
      for (const std::string& line : describe_world(membership, options_)) {
        LIGHTCC_LOG(LogLevel::kInfo, "%s", line.c_str());
      }
    }
    const bool networked = membership.transport != nullptr;
    spin_ = spin_policy(membership.topology.local_size, networked);
    LIGHTCC_ASSIGN_OR_RETURN(
        core_, Core::make(std::move(membership), options_, joining, clock_, operations_));
    if (const auto timeline = timeline_asked_for(options_.knobs)) {
      LIGHTCC_RETURN_IF_ERROR(start_timeline(*timeline));
    }
    if (joining != nullptr) {
      LIGHTCC_RETURN_IF_ERROR(core_->executor().await_communicators(*joining));
    }
    LIGHTCC_RETURN_IF_ERROR(start_thread());
    return add_static_process_sets(joining);
  }

  // The ranks part when all have come so far: until then a death is heard of through the store, and
  // no rank can be gone with what another still has to read. Rank 0, which may serve the store, is
  // the last.
  Status meet_at_the_start(const Joining& joining) const {
    LIGHTCC_RETURN_IF_ERROR(exchange(joining, options_.epoch.key_prefix + "/ready", {}).status());
    const bool is_last = options_.epoch.rank == 0;
    const Status left = joining.attendance.leave(is_last, joining.deadline);
    return is_last && left.code() == ErrorCode::kTimeout ? Status() : left;  // All are ready.
  }

  Status add_static_process_sets(const Joining* joining) {
    const auto has_update = [joining] {
      return joining != nullptr && !joining->attendance.failure({}).ok();
    };
    for (const auto& ranks : options_.process_sets) {
      std::vector<Operation> operations(1);
      operations[0].request.signature.op = OpType::kAddProcessSet;
      operations[0].request.ranks = ranks;
      LIGHTCC_ASSIGN_OR_RETURN(
          const Handle handle,
          submit_checked(std::move(operations), {.waits = true}, std::make_shared<HandleState>()));
      LIGHTCC_RETURN_IF_ERROR(wait(handle, has_update, Until::kEnqueued).status());
    }
    return {};
  }

  Result<Handle> submit_checked(std::vector<Operation> operations,
                                const SubmitOptions& options,
                                Handle state) {
    LIGHTCC_RETURN_IF_ERROR(check_alive());
    if (options.waits && is_in_completion()) {
      return refused_in_completion("an operation that is waited for");
    }
    const auto sets = core_->process_sets();
    const Topology& topology = core_->topology();
    const SubmissionContext context{
        .sets = *sets,
        .rank = topology.rank,
        .world_size = topology.size,
        .serves_cuda = core_->executor().planes().serves(MemoryKind::kCuda)};
    LIGHTCC_RETURN_IF_ERROR(prepare_operations(operations, context, options_.knobs));
    LIGHTCC_ASSIGN_OR_RETURN(
        Handle handle, operations_.add(std::move(operations), options.grouping, std::move(state)));
    if (!options.waits) {
      core_->waker().wake();
    }
    return handle;
  }

  // Of a handle that is done. One that has failed on a device ends the world, whose error counts.
  Status await_device(const HandleState& state,
                      Until until,
                      const std::function<bool()>& interrupted) {
    const OnDevice before = on_device(state);
    if (before == OnDevice::kFinished ||
        (before == OnDevice::kGoesOn && until == Until::kEnqueued)) {
      return {};
    }
    const auto is_done = [&] { return core_->over() || on_device(state) == OnDevice::kFinished; };
    LIGHTCC_RETURN_IF_ERROR(help_until(is_done, interrupted));
    return on_device(state) == OnDevice::kFinished ? Status() : operations_.error();
  }

  // Drives until `is_done` says so. Errors: of finish(), but the world's.
  template <typename Done>
  Status help_until(const Done& is_done, const std::function<bool()>& interrupted) {
    if (!is_done() && is_in_completion()) {
      return refused_in_completion("waiting for a device");
    }
    while (!is_done()) {
      LIGHTCC_RETURN_IF_ERROR(check_alive());
      help(is_done, nullptr);
      if (interrupted && !is_done() && interrupted()) {
        return make_error(ErrorCode::kTimeout, "the wait was interrupted");
      }
    }
    return {};
  }

  static const HandleState& never() {
    static const HandleState kNever;
    return kNever;
  }

  // Runs the completions of what is done. Not while this thread drives.
  void run_completions() LIGHTCC_EXCLUDES(drive_mutex_) {
    if (!operations_.has_callbacks()) {
      return;
    }
    completing_threads_.fetch_add(1, std::memory_order_acq_rel);
    for (const auto& callback : operations_.take_callbacks()) {
      run_completion(callback);
    }
    completing_threads_.fetch_sub(1, std::memory_order_acq_rel);
    operations_.notify();  // shutdown() may wait for it.
  }

  // Drives the loop, or waits while another thread does, until `done` says so or it is time to ask
  // whether the wait was interrupted.
  template <typename Done>
  void help(const Done& done, const HandleState* state) {
    const TimePoint until = clock_.now() + kInterruptInterval;
    helpers_.fetch_add(1, std::memory_order_seq_cst);
    bool drove = false;
    for (int tries = 0; tries < 1000 && !drove && !done(); ++tries) {
      if (drive_mutex_.try_lock()) {
        if (spin_.shuts_gate) {
          core_->waker().shut_gate();
        }
        drive(done, until, spin_.foreground);
        settle();
        core_->waker().open_gate();
        drive_mutex_.unlock();
        drove = true;
      } else {
        relax(tries % 16 == 15);
      }
    }
    helpers_.fetch_sub(1, std::memory_order_seq_cst);
    if (drove) {
      operations_.notify();  // Another waiting thread may take over.
      run_completions();
    } else if (!done()) {
      operations_.wait_for_change(state != nullptr ? *state : never(),
                                  state != nullptr ? kInterruptInterval : kDeviceInterval);
    }
  }

  // hot
  template <typename Done>
  void drive(const Done& done, TimePoint until, Duration spin) LIGHTCC_REQUIRES(drive_mutex_) {
    core_->waker().cancel_sleep();
    TimePoint idle_since = clock_.now();
    std::uint32_t idle_steps = 0;
    while (!done() && !operations_.has_callbacks()) {
      if (core_->step()) {
        idle_steps = 0;
        continue;
      }
      relax(spin_.yield);
      if (++idle_steps == 1) {
        idle_since = clock_.now();
      }
      if (idle_steps % 16 != 0) {
        continue;
      }
      const TimePoint now = clock_.now();
      if (now >= until) {
        return;
      }
      if (now - idle_since >= spin) {
        rest_until(until);
        idle_steps = 0;
      }
    }
  }

  void rest_until(TimePoint until) LIGHTCC_REQUIRES(drive_mutex_) {
    if (core_->prepare_to_sleep() && !operations_.has_callbacks()) {
      sleeps_.fetch_add(1, std::memory_order_relaxed);
      core_->waker().wait(std::min<Duration>(time_to_look(), until - clock_.now()));
      core_->note_wakeup();
    }
    core_->waker().cancel_sleep();
  }

  // How long the loop may sleep.
  Duration time_to_look() const LIGHTCC_REQUIRES(drive_mutex_) {
    return std::min(core_->time_to_tick(), core_->executor().time_to_look());
  }

  // Leaves the loop without a driver: from now on peers ring. What still moves is for the own
  // thread.
  void settle() LIGHTCC_REQUIRES(drive_mutex_) {
    if (!core_->prepare_to_sleep()) {
      core_->waker().wake();
    }
  }

  bool is_wanted_elsewhere() const {
    return helpers_.load(std::memory_order_seq_cst) > 0 || stop_.load(std::memory_order_acquire);
  }

  void run() {
    (void)::pthread_setname_np(::pthread_self(), "lightcc");
    while (!stop_.load(std::memory_order_acquire)) {
      drive_mutex_.lock();
      core_->note_wakeup();
      core_->waker().cancel_sleep();
      drive_in_background();
      const bool quiet = !is_wanted_elsewhere() && core_->prepare_to_sleep();
      const Duration timeout = time_to_look();
      drive_mutex_.unlock();
      run_completions();
      if (!quiet) {
        relax(true);  // To the thread that wants to drive, or at once again.
        continue;
      }
      sleeps_.fetch_add(1, std::memory_order_relaxed);
      if (core_->over()) {
        core_->waker().wait_for_bell(kOverInterval);
      } else {
        (void)core_->waker().wait_at_gate(timeout);
      }
    }
  }

  // hot
  void drive_in_background() LIGHTCC_REQUIRES(drive_mutex_) {
    TimePoint idle_since = clock_.now();
    while (!is_wanted_elsewhere() && !operations_.has_callbacks()) {
      if (core_->step()) {
        idle_since = clock_.now();
        continue;
      }
      if (!core_->busy() || clock_.now() - idle_since >= spin_.background) {
        return;
      }
      relax(spin_.yield);
    }
  }

  WorldOptions options_;
  const Clock& clock_;
  OperationTable operations_;
  SpinPolicy spin_;
  mutable Mutex drive_mutex_;
  std::unique_ptr<Core> core_;  // Its step() and what it touches: drive_mutex_.
  std::atomic<int> helpers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> sleeps_{0};
  std::atomic<int> completing_threads_{0};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace

Result<WorldPtr> World::create(WorldOptions options) {
  static const int kInstalled =
      ::pthread_atfork(nullptr, nullptr, [] { mark_all_worlds_dead_in_child(); });
  (void)kInstalled;
  const Clock& clock = *options.clock;
  configure_log(options.knobs.log_level, options.knobs.log_hide_time, options.epoch.rank);
  auto world = std::make_unique<WorldImpl>(std::move(options), clock);
  LIGHTCC_RETURN_IF_ERROR(world->start());
  return WorldPtr(world.release());
}

void WorldDeleter::operator()(World* world) const {
  std::unique_ptr<World> owned(world);
  if (is_in_completion()) {
    LIGHTCC_LOG(LogLevel::kError, "a World cannot be destroyed inside a completion; it stays");
    (void)owned.release();
  }
}

void mark_all_worlds_dead_in_child() {
  if (worlds_alive.load(std::memory_order_relaxed) > 0) {
    dead_in_child.store(true, std::memory_order_relaxed);
  }
  UniqueFd::close_all_in_child();
}

}  // namespace lightcc
