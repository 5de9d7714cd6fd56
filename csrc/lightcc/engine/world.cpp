#include "lightcc/engine/world.hpp"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "lightcc/base/log.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/base/usable_cores.hpp"
#include "lightcc/engine/backoff.hpp"
#include "lightcc/engine/completion.hpp"
#include "lightcc/engine/core.hpp"
#include "lightcc/engine/handle_on_device.hpp"
#include "lightcc/engine/progress_loop.hpp"
#include "lightcc/engine/submission.hpp"
#include "lightcc/engine/world_report.hpp"

namespace lightcc {
namespace {

std::atomic<bool> dead_in_child{false};
// Worlds that exist in this process: a child forked while there are none may have its own.
std::atomic<int> worlds_alive{0};

// How long to wait for other hosts to close their ends of a world that ended in good order.
constexpr Duration kFarewell = std::chrono::seconds(2);
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
      (void)residuals_.release();
      (void)loop_.release();
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
    const Duration patience = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(options_.knobs.start_timeout_s));
    const TimePoint deadline = clock_.now() + patience;
    LIGHTCC_ASSIGN_OR_RETURN(
        const auto round,
        options_.epoch.store->join(options_.epoch.key_prefix, last_will(), deadline));
    Joining joining{*options_.epoch.store,
                    *round,
                    options_.epoch.rank,
                    options_.epoch.size,
                    deadline,
                    options_.start_limit};
    Status started = start_joined(&joining);
    if (started.ok()) {
      // Communicators may have taken longer than ranks may take to join.
      joining.deadline = clock_.now() + patience;
      started = meet_at_the_start(joining);
    }
    if (started.ok()) {
      options_.epoch.store.reset();  // Its descriptors are of no more use.
      return {};
    }
    started = give_up(joining, started);
    if (core_ != nullptr) {
      const MutexLock lock(loop_->mutex());
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
    auto state = std::make_shared<HandleState>();
    state->repeats = options.repeats;
    state->process_set = options.repeats ? operations.front().request.signature.process_set : 0;
    return submit_checked(std::move(operations), options, std::move(state));
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
    LIGHTCC_RETURN_IF_ERROR(await_end(*handle, interrupted));
    if (!handle->status.ok()) {
      // What else the call began may go on, on a device.
      (void)await_device(*handle, Until::kFinished, {});
      return handle->status;
    }
    LIGHTCC_RETURN_IF_ERROR(await_device(*handle, until, interrupted));
    return std::move(handle->outcomes);
  }

  // hot
  Status repeat(const Handle& handle,
                void* input,
                void* output,
                const std::function<bool()>& interrupted) override {
    LIGHTCC_RETURN_IF_ERROR(check_alive());
    if (handle->process_set != kGlobalProcessSet) {
      const auto sets = core_->process_sets();
      Operation operation;
      operation.request.signature.process_set = handle->process_set;
      LIGHTCC_RETURN_IF_ERROR(
          find_members(operation, {.sets = *sets, .rank = topology().rank}).status());
    }
    LIGHTCC_RETURN_IF_ERROR(operations_.repeat(handle, input, output));
    LIGHTCC_RETURN_IF_ERROR(await_end(*handle, interrupted));
    return handle->status;
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
    stats.sleeps = loop_->sleeps();
    stats.yields = loop_->yields();
    stats.slow_yields = loop_->slow_yields();
    const MutexLock lock(loop_->mutex());
    core_->fill_stats(stats);
    stats.compression = residuals_->counters();
    stats.compressed = residuals_->usage();
    return stats;
  }

  std::optional<GridPosition> compression_position(std::uint32_t process_set) const override {
    const MutexLock lock(loop_->mutex());
    return core_->executor().compression_position(process_set);
  }

  bool compresses(std::uint32_t process_set, std::uint64_t num_bytes) const override {
    return num_bytes >= static_cast<std::uint64_t>(options_.knobs.topk_min_bytes) &&
           compression_position(process_set).has_value();
  }

  Result<std::vector<SavedCompression>> save_compression() const override {
    const MutexLock lock(loop_->mutex());
    LIGHTCC_ASSIGN_OR_RETURN(auto entries, residuals_->save());
    std::vector<SavedCompression> all;
    all.reserve(entries.size());
    for (auto& [key, bytes] : entries) {
      all.push_back({key.first, key.second, std::move(bytes)});
    }
    return all;
  }

  Result<SavedTensor> check_compression(const SavedCompression& saved) const override {
    const MutexLock lock(loop_->mutex());
    return residuals_->check({saved.process_set, saved.name}, saved.bytes);
  }

  Status load_compression(const SavedCompression& saved) override {
    const MutexLock lock(loop_->mutex());
    return residuals_->load({saved.process_set, saved.name}, saved.bytes);
  }

  Status scale_compression(double factor,
                           std::uint32_t process_set,
                           const std::vector<std::string>& names) override {
    std::vector<ResidualStore::Key> keys;
    keys.reserve(names.size());
    for (const std::string& name : names) {
      keys.emplace_back(process_set, name);
    }
    const MutexLock lock(loop_->mutex());
    return residuals_->scale(factor, keys);
  }

  Status start_timeline(const TimelineOptions& options) override {
    const MutexLock lock(loop_->mutex());
    return core_->start_timeline(options);
  }

  void stop_timeline() override {
    const MutexLock lock(loop_->mutex());
    core_->stop_timeline();
  }

  bool is_recording() const override { return core_->is_recording(); }
  bool failed() const override { return core_->failed(); }

  void fail(const Status& error) override {
    if (check_alive().ok()) {
      const MutexLock lock(loop_->mutex());
      core_->fail(error);
    }
  }

  Status shutdown() override {
    if (loop_ == nullptr || !loop_->has_thread() || !check_alive().ok()) {
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
      loop_->help([&] { return core_->over(); }, nullptr);
    }
    if (!core_->over()) {
      const MutexLock lock(loop_->mutex());
      core_->fail(make_error(ErrorCode::kTimeout, "no other rank answered the shutdown"));
    }
    loop_->stop_thread();
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

  Status last_will() const {
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
    const BackoffPolicy policy =
        backoff_policy(membership.topology.local_size, usable_cores(), networked);
    LIGHTCC_ASSIGN_OR_RETURN(
        core_,
        Core::make(std::move(membership), options_, joining, clock_, operations_, *residuals_));
    loop_ = std::make_unique<ProgressLoop>(*core_, operations_, clock_, policy);
    if (const auto timeline = timeline_asked_for(options_.knobs)) {
      LIGHTCC_RETURN_IF_ERROR(start_timeline(*timeline));
    }
    if (joining != nullptr) {
      LIGHTCC_RETURN_IF_ERROR(core_->executor().await_communicators(*joining));
    }
    LIGHTCC_RETURN_IF_ERROR(loop_->start_thread());
    return add_static_process_sets(joining);
  }

  // The ranks part when all have come so far: until then a death is heard of through the store, and
  // no rank can be gone with what another still has to read. Rank 0, which may serve the store, is
  // the last.
  Status meet_at_the_start(const Joining& joining) const {
    LIGHTCC_RETURN_IF_ERROR(exchange(joining, options_.epoch.key_prefix + "/ready", {}).status());
    const bool is_last = options_.epoch.rank == 0;
    const Status left = joining.round.leave(is_last, joining.deadline);
    return is_last && left.code() == ErrorCode::kTimeout ? Status() : left;  // All are ready.
  }

  Status add_static_process_sets(const Joining* joining) {
    const auto has_update = [joining] {
      return joining != nullptr && !joining->round.failure({}).ok();
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
    const auto sets = core_->process_sets();
    const Topology& topology = core_->topology();
    const SubmissionContext context{.sets = *sets,
                                    .rank = topology.rank,
                                    .world_size = topology.size,
                                    .serves_cuda = core_->planes().serves(MemoryKind::kCuda)};
    LIGHTCC_RETURN_IF_ERROR(prepare_operations(operations, context, options_.knobs));
    LIGHTCC_ASSIGN_OR_RETURN(
        Handle handle, operations_.add(std::move(operations), options.grouping, std::move(state)));
    if (!options.waits) {
      core_->waker().wake();
    }
    return handle;
  }

  // Until the handle is done. Errors: of wait(), but what became of the operations.
  Status await_end(const HandleState& state, const std::function<bool()>& interrupted) {
    const auto is_done = [&] { return state.done.load(std::memory_order_acquire); };
    if (!is_done()) {
      let_other_completions_run();
    }
    while (!is_done()) {
      LIGHTCC_RETURN_IF_ERROR(check_alive());
      loop_->help(is_done, &state);
      if (interrupted && !is_done() && interrupted()) {
        return make_error(ErrorCode::kTimeout, "the wait was interrupted");
      }
    }
    return {};
  }

  // The handle is done. One that has failed on a device ends the world, whose error counts.
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
    while (!is_done()) {
      LIGHTCC_RETURN_IF_ERROR(check_alive());
      loop_->help(is_done, nullptr);
      if (interrupted && !is_done() && interrupted()) {
        return make_error(ErrorCode::kTimeout, "the wait was interrupted");
      }
    }
    return {};
  }

  WorldOptions options_;
  const Clock& clock_;
  OperationTable operations_;
  // The core's Works use them, under the loop's mutex. They outlive it, and not the planes'
  // staging.
  std::unique_ptr<ResidualStore> residuals_ = std::make_unique<ResidualStore>();
  std::unique_ptr<Core> core_;          // Its step() and what it touches: the loop's mutex.
  std::unique_ptr<ProgressLoop> loop_;  // Wherever there is a core.
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
