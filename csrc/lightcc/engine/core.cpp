#include "lightcc/engine/core.hpp"

#include <algorithm>
#include <utility>

#include "lightcc/base/log.hpp"
#include "lightcc/engine/combine_inline.hpp"
#include "lightcc/engine/control_options.hpp"
#include "lightcc/engine/world_report.hpp"

namespace lightcc {
namespace {

// While the loop spins it reads the clock once in so many steps.
constexpr std::uint32_t kStepsBetweenTicks = 256;

// The machine keeps an operation as a number.
OperationToken token_of(const InFlight* operation) {
  return reinterpret_cast<OperationToken>(operation);
}

InFlight* operation_of(OperationToken token) {
  return reinterpret_cast<InFlight*>(token);  // NOLINT(performance-no-int-to-ptr): see above.
}

}  // namespace

Core::Core(Membership world, const Clock& clock, OperationTable& operations)
    : world_(std::move(world)),
      clock_(clock),
      operations_(operations),
      timeline_(clock),
      process_sets_(std::make_shared<const ProcessSetTable>(world_.topology.size)) {}

Core::~Core() {
  bell_->connect(nullptr);
}

Result<std::unique_ptr<Core>> Core::make(Membership world,
                                         const WorldOptions& options,
                                         const Joining* joining,
                                         const Clock& clock,
                                         OperationTable& operations,
                                         ResidualStore& residuals) {
  std::unique_ptr<Core> core(new Core(std::move(world), clock, operations));
  LIGHTCC_RETURN_IF_ERROR(core->start(options, joining, residuals));
  return core;
}

Status Core::start(const WorldOptions& options, const Joining* joining, ResidualStore& residuals) {
  const Knobs& knobs = options.knobs;
  const SimdLevel simd = detect_simd_level();
  LIGHTCC_ASSIGN_OR_RETURN(const FusionRule fusion, parse_fusion_strategy(knobs.fusion_strategy));
  const HostMembership& host = world_.host;
  LIGHTCC_ASSIGN_OR_RETURN(
      waker_, Waker::make(host.words[static_cast<std::size_t>(host.index)], host.bell.get()));
  bell_->connect(&*waker_);
  LIGHTCC_RETURN_IF_ERROR(watch_descriptors());
  control_ = std::make_unique<ControlPlane>(
      control_options(world_, knobs, fusion, simd, liveness_->watched_ranks()), clock_.now());
  LIGHTCC_ASSIGN_OR_RETURN(planes_, Planes::make(world_, simd, options, bell_, joining));
  executor_ = std::make_unique<Executor>(
      world_, knobs, *planes_, residuals, clock_, operations_, timeline_);
  one_shot_ = OneShotAllreduce::make(
      world_, fusion, make_combine_inline(world_, knobs, simd), clock_, operations_);
  return executor_->add_process_set(
      kGlobalProcessSet, *process_sets()->find(kGlobalProcessSet), nullptr);
}

// hot
bool Core::step(bool looks) {
  if (over()) {
    return false;
  }
  if (control_->is_suspecting()) {
    return listen();
  }
  auto moved = try_step(looks);
  if (moved.ok()) {
    return *moved;
  }
  control_->on_trouble(moved.status(), clock_.now());
  act();
  return true;
}

// hot
Result<bool> Core::try_step(bool looks) {
  const bool was_empty = operations_.empty();
  LIGHTCC_ASSIGN_OR_RETURN(bool moved, advance_one_shot());
  LIGHTCC_ASSIGN_OR_RETURN(const bool reported, report_new());
  if (reported) {
    control_->advance(clock_.now());  // Before others are listened to: they wait for this.
    act();
    moved = true;
  } else if (!was_empty && operations_.empty() && ++steps_ % kStepsBetweenTicks != 0) {
    return true;  // All that was in flight is done, in one shot: the next step does the rest.
  }
  const bool looks_at_all = looks && are_descriptors_due();
  LIGHTCC_ASSIGN_OR_RETURN(const bool read, read_links(looks_at_all));
  if (control_->wants_advance() || (control_->has_held() && clock_.now() >= control_->deadline())) {
    control_->advance(clock_.now());
  }
  act();
  if (over() || control_->is_suspecting()) {
    return true;
  }
  LIGHTCC_ASSIGN_OR_RETURN(const bool advanced, executor_->advance());
  for (const auto& [process_set, lane] : executor_->take_finished()) {
    control_->on_bucket_done(process_set, lane, clock_.now());
  }
  if (control_->wants_advance()) {
    control_->advance(clock_.now());
    act();
  }
  moved = flush_links() || moved || read || advanced;
  // One look in a step: descriptors include the transport's.
  if (world_.transport != nullptr &&
      (!is_transport_watched_ || !world_.transport->tells_all() || (looks && !looks_at_all))) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool transported, world_.transport->poll());
    moved = moved || transported;
  }
  if ((++steps_ % kStepsBetweenTicks == 0 || !moved) && clock_.now() >= control_->next_tick()) {
    LIGHTCC_RETURN_IF_ERROR(tick());
  }
  if (may_close()) {
    control_->on_quiet();
    act();
  }
  return moved;
}

Duration Core::time_to_look() const {
  const auto to_tick = std::max<Duration>(control_->deadline() - clock_.now(), Duration::zero());
  return std::min(to_tick, executor_->time_to_look());
}

bool Core::prepare_to_sleep() {
  if (one_shot_ != nullptr && one_shot_->holds()) {
    return false;  // The others would not wake it.
  }
  waker_->prepare_to_sleep(sleep_state());
  if (step(false)) {
    return false;
  }
  if (world_.transport != nullptr && !over()) {
    world_.transport->prepare_to_wait();
  }
  return true;
}

SleepState Core::sleep_state() const {
  // A timeline tells when others report: this rank wants to hear of it then.
  const bool waits =
      busy() || timeline_.is_on() || control_->is_closing() || control_->is_suspecting() ||
      (world_.parent.has_value() && world_.parent->has_backlog()) || children_have_backlog();
  return waits ? kWaiting : kIdle;
}

// --- Into the machine
// -----------------------------------------------------------------------------

// What is held waits only while there is nothing else to do.
Result<bool> Core::advance_one_shot() {
  if (one_shot_ == nullptr || !one_shot_->holds()) {
    return false;
  }
  const bool may_wait = !operations_.has_new() && !leave_requested_.load(std::memory_order_acquire);
  LIGHTCC_ASSIGN_OR_RETURN(const OneShotAllreduce::Held held, one_shot_->advance(may_wait));
  if (held == OneShotAllreduce::Held::kToReport) {
    submit(one_shot_->release(), {});
  }
  return held != OneShotAllreduce::Held::kWaits;
}

void Core::submit(InFlight& operation, std::span<const std::byte> input) {
  Request& request = operation.operation.request;
  request.objection = executor_->why_unsupported(operation.operation);
  request.signature.steps_ahead = executor_->steps_ahead(request.signature);
  control_->submit(request, *operation.key, token_of(&operation), input);
}

Result<bool> Core::report_new() {
  bool moved = false;
  if (operations_.has_new()) {
    const std::vector<InFlight*>& added = operations_.take_new();
    // What nothing can be fused with, and all wait for.
    const bool is_alone = added.size() == 1 && operations_.in_flight() == 1;
    if (is_alone && one_shot_ != nullptr && !timeline_.is_on()) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool taken, one_shot_->take(*added.front()));
      if (taken) {
        return false;
      }
    }
    for (InFlight* const operation : added) {
      submit(*operation,
             is_alone ? input_at_hand(operation->operation) : std::span<const std::byte>());
    }
    moved = true;
  }
  if (leave_requested_.load(std::memory_order_acquire) && !std::exchange(leave_reported_, true)) {
    control_->leave();
    moved = true;
  }
  return moved;
}

Status Core::tick() {
  LIGHTCC_RETURN_IF_ERROR(service_descriptors().status());
  const TimePoint now = clock_.now();
  const bool is_busy = busy();
  liveness_->beat(is_busy);
  liveness_->tell(*control_, now);
  look_at_departed(now);
  control_->tick(now, is_busy, liveness_->host_is_busy());
  for (const std::string& warning : control_->take_warnings()) {
    LIGHTCC_LOG(LogLevel::kWarning, "%s", warning.c_str());
  }
  for (const SlowChange& change : control_->take_slow_changes()) {
    LIGHTCC_LOG(change.has_ended ? LogLevel::kInfo : LogLevel::kWarning,
                "%s",
                describe_slow(world_, change).c_str());
  }
  act();
  return {};
}

// --- Out of the machine
// ---------------------------------------------------------------------------

void Core::act() {
  while (control_->has_output()) {
    for (const OutgoingFrame& frame : control_->take_frames()) {
      send(frame);
    }
    for (ControlAction& action : control_->take_actions()) {
      if (const Status applied = apply(action); !applied.ok()) {
        control_->on_trouble(applied, clock_.now());
      }
    }
  }
}

void Core::send(const OutgoingFrame& frame) {
  encoded_.clear();
  encode_frame(frame.frame, encoded_);
  const auto send_to = [&](ControlLink& to, LinkIndex index) {
    if (frame.goes_to(index) && !to.is_broken()) {
      // A link that fails here fails again when it is flushed, and is dealt with there.
      (void)to.send_encoded(encoded_, frame.is_urgent);
      ++frames_sent_;
    }
  };
  if (world_.parent.has_value()) {
    send_to(*world_.parent, kParentLink);
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    send_to(world_.children[i], static_cast<LinkIndex>(i));
  }
}

Status Core::apply(ControlAction& action) {
  if (auto* agreed = std::get_if<RunBucket>(&action)) {
    Bucket bucket{agreed->process_set, agreed->lane, {}, agreed->sequence};
    bucket.tensors.reserve(agreed->tensors.size());
    for (MatchedTensor& tensor : agreed->tensors) {
      BucketTensor& added = bucket.tensors.emplace_back();
      added.agreed = std::move(tensor.agreed);
      added.operation = operation_of(tensor.operation);
    }
    return executor_->run(std::move(bucket));
  } else if (auto* taken = std::get_if<TakeResult>(&action)) {
    Bucket bucket{taken->process_set, 0, {}};
    bucket.tensors.push_back({.agreed = std::move(taken->tensor.agreed),
                              .operation = operation_of(taken->tensor.operation),
                              .outcome = {},
                              .status = {}});
    return executor_->take_result(std::move(bucket), taken->result);
  } else if (const auto* complete = std::get_if<CompleteOperation>(&action)) {
    Outcome outcome;
    outcome.value = complete->value;
    operations_.complete(*operation_of(complete->operation), complete->status, std::move(outcome));
  } else if (const auto* named = std::get_if<NameReceive>(&action)) {
    return operations_.name_receive(*operation_of(named->operation), named->source, named->name);
  } else if (const auto* made = std::get_if<MakeProcessSet>(&action)) {
    publish_process_sets();
    return executor_->add_process_set(made->id, made->ranks, operation_of(made->waiting));
  } else if (const auto* dropped = std::get_if<DropProcessSet>(&action)) {
    publish_process_sets();
    executor_->remove_process_set(dropped->id);
  } else {
    end(std::get<EndWorld>(action));
  }
  return {};
}

void Core::end(const EndWorld& end) {
  if (end.is_in_order) {
    if (world_.parent.has_value()) {
      world_.parent->finish_sending();
    }
    for (ControlLink& child : world_.children) {
      child.finish_sending();
    }
  }
  if (!end.is_in_order || !executor_->idle()) {
    executor_->drop_all();  // Before callers hear that their memory is theirs again.
  }
  if (!end.is_in_order) {
    timeline_.world_failed(end.status);
    failed_.store(true, std::memory_order_release);
  }
  if (one_shot_ != nullptr) {
    one_shot_->finish();
  }
  operations_.fail_all(end.status);
  liveness_->say_over();
  over_.store(true, std::memory_order_release);
  operations_.notify();
}

void Core::fail(const Status& error) {
  control_->fail(error);
  act();
}

Status Core::start_timeline(const TimelineOptions& options) {
  Status started = timeline_.start(options, world_.topology.rank, world_.topology.size);
  control_->set_observer(timeline_.is_on() ? &timeline_ : nullptr);
  return started;
}

void Core::stop_timeline() {
  control_->set_observer(nullptr);
  timeline_.stop();
}

void Core::publish_process_sets() {
  auto next = std::make_shared<const ProcessSetTable>(control_->process_sets());
  const MutexLock lock(sets_mutex_);
  process_sets_ = std::move(next);
}

std::shared_ptr<const ProcessSetTable> Core::process_sets() const {
  const MutexLock lock(sets_mutex_);
  return process_sets_;
}

void Core::fill_stats(WorldStats& stats) const {
  stats.one_shot_allreduces = one_shot_ != nullptr ? one_shot_->count() : 0;
  stats.inline_allreduces = executor_->inline_allreduces();
  stats.buckets = executor_->buckets() + stats.one_shot_allreduces;
  stats.device_buckets = executor_->device_buckets();
  stats.allreduce_costs = executor_->allreduce_costs();
  stats.control_frames_sent = frames_sent_;
  if (const Sequencer* const sequencer = control_->sequencer(); sequencer != nullptr) {
    stats.lateness = sequencer->lateness(clock_.now());
  }
  if (world_.transport != nullptr) {
    stats.network_bytes_sent = world_.transport->bytes_sent();
    stats.network_bytes_received = world_.transport->bytes_received();
    stats.network_retransmits = world_.transport->retransmits();
  }
}

}  // namespace lightcc
