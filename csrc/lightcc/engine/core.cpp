#include "lightcc/engine/core.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lightcc/base/log.hpp"
#include "lightcc/engine/control_options.hpp"
#include "lightcc/engine/host_discovery.hpp"
#include "lightcc/engine/world_report.hpp"

namespace lightcc {
namespace {

// What a descriptor in the waker stands for: a kind above, a number below.
enum class Source : std::uint64_t { kTransport = 1, kControl = 2, kLocalSocket = 3, kProcess = 4 };
constexpr unsigned kSourceShift = 32;

constexpr std::uint64_t tag_of(Source source, std::size_t number) {
  return (static_cast<std::uint64_t>(source) << kSourceShift) | number;
}

constexpr Source source_of(std::uint64_t tag) {
  return static_cast<Source>(tag >> kSourceShift);
}

constexpr std::size_t number_of(std::uint64_t tag) {
  return static_cast<std::size_t>(tag & 0xffffffffU);
}

// Links in tags: the parent is 0, children follow.
constexpr LinkIndex link_of(std::size_t number) {
  return number == 0 ? kParentLink : static_cast<LinkIndex>(number) - 1;
}

// While the loop spins it looks at descriptors (a system call) once in so many steps: rarely on one
// host, where they only tell of deaths and new segments, often where control links are sockets.
constexpr std::uint32_t kStepsBetweenDescriptors = 256;
constexpr std::uint32_t kStepsBetweenDescriptorsOnNetwork = 4;

bool has_ended(int socket) {
  std::byte probe{};
  const auto count = ::recv(socket, &probe, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

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

Result<std::unique_ptr<Core>> Core::make(Membership world,
                                         const WorldOptions& options,
                                         const Joining* joining,
                                         const Clock& clock,
                                         OperationTable& operations) {
  std::unique_ptr<Core> core(new Core(std::move(world), clock, operations));
  LIGHTCC_RETURN_IF_ERROR(core->start(options, joining));
  return core;
}

Status Core::start(const WorldOptions& options, const Joining* joining) {
  const Knobs& knobs = options.knobs;
  LIGHTCC_ASSIGN_OR_RETURN(const SimdLevel simd, parse_simd_level(knobs.simd));
  LIGHTCC_ASSIGN_OR_RETURN(const FusionRule fusion, parse_fusion_strategy(knobs.fusion_strategy));
  const HostMembership& host = world_.host;
  LIGHTCC_ASSIGN_OR_RETURN(
      waker_, Waker::make(host.words[static_cast<std::size_t>(host.index)], host.bell.get()));
  LIGHTCC_RETURN_IF_ERROR(watch_descriptors());
  LIGHTCC_ASSIGN_OR_RETURN(liveness_,
                           Liveness::start(world_, *waker_, tag_of(Source::kProcess, 0)));
  control_ = std::make_unique<ControlPlane>(
      control_options(world_, knobs, fusion, simd, liveness_->watched_ranks()), clock_.now());
  if (control_->is_autotuning()) {
    autotune_log_ = std::make_unique<AutotuneLog>(knobs.autotune_log);
  }
  LIGHTCC_ASSIGN_OR_RETURN(Planes all, Planes::make(world_, simd, options, joining));
  executor_ =
      std::make_unique<Executor>(world_, knobs, std::move(all), clock_, operations_, timeline_);
  return executor_->add_process_set(
      kGlobalProcessSet, *process_sets()->find(kGlobalProcessSet), nullptr);
}

Status Core::watch_descriptors() {
  const HostMembership& host = world_.host;
  for (std::size_t position = 0; position < host.sockets.size(); ++position) {
    if (host.sockets[position].valid()) {
      LIGHTCC_RETURN_IF_ERROR(
          waker_->watch(host.sockets[position].get(), tag_of(Source::kLocalSocket, position)));
    }
  }
  if (world_.parent.has_value() && world_.parent->fd() >= 0) {
    LIGHTCC_RETURN_IF_ERROR(waker_->watch(world_.parent->fd(), tag_of(Source::kControl, 0)));
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    if (world_.children[i].fd() >= 0) {
      LIGHTCC_RETURN_IF_ERROR(
          waker_->watch(world_.children[i].fd(), tag_of(Source::kControl, i + 1)));
    }
  }
  if (world_.transport != nullptr && world_.transport->wait_fd() >= 0) {
    LIGHTCC_RETURN_IF_ERROR(
        waker_->watch(world_.transport->wait_fd(), tag_of(Source::kTransport, 0)));
    is_transport_watched_ = true;
  }
  return {};
}

// hot
bool Core::step() {
  if (over()) {
    return false;
  }
  if (control_->is_suspecting()) {
    return listen();
  }
  auto moved = try_step();
  if (moved.ok()) {
    return *moved;
  }
  control_->on_trouble(moved.status(), clock_.now());
  act();
  return true;
}

// hot
Result<bool> Core::try_step() {
  bool moved = report_new();
  if (moved) {
    control_->advance(clock_.now());  // Before others are listened to: they wait for this.
    act();
  }
  LIGHTCC_ASSIGN_OR_RETURN(const bool read, read_links());
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
  if (world_.transport != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool transported, world_.transport->poll());
    moved = moved || transported;
  }
  if ((++steps_ % kStepsBetweenDescriptors == 0 || !moved) &&
      clock_.now() >= control_->next_tick()) {
    LIGHTCC_RETURN_IF_ERROR(tick());
  }
  if (may_close()) {
    control_->on_quiet();
    act();
  }
  return moved;
}

// A connection closed, and this rank waits for better news: of a link, or of a process of this
// host.
bool Core::listen() {
  if (world_.transport != nullptr && std::exchange(is_transport_watched_, false)) {
    waker_->unwatch(world_.transport->wait_fd());  // Nobody reads it any more.
  }
  std::optional<std::size_t> dead;  // A death counts after what its process said.
  for (const std::uint64_t tag : waker_->ready()) {
    const std::size_t position = number_of(tag);
    if (source_of(tag) == Source::kProcess || (source_of(tag) == Source::kLocalSocket &&
                                               has_ended(world_.host.sockets[position].get()))) {
      dead = position;
    }
  }
  if (world_.parent.has_value()) {
    read_link(kParentLink);
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    read_link(static_cast<LinkIndex>(i));
  }
  if (dead.has_value()) {
    control_->on_death(liveness_->death_of(*dead));
  }
  const TimePoint now = clock_.now();
  if (now >= control_->next_tick()) {
    liveness_->beat(true);
    liveness_->tell(*control_, now);
    control_->tick(now, true, true);
  }
  control_->advance(now);
  act();
  return over();
}

Duration Core::time_to_tick() const {
  return std::max<Duration>(control_->deadline() - clock_.now(), Duration::zero());
}

bool Core::prepare_to_sleep() {
  waker_->prepare_to_sleep(sleep_state());
  if (step()) {
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

bool Core::report_new() {
  bool moved = false;
  if (operations_.has_new()) {
    const std::vector<InFlight*>& added = operations_.take_new();
    // What nothing can be fused with, and all wait for.
    const bool is_alone = added.size() == 1 && operations_.in_flight() == 1;
    for (const InFlight* operation : added) {
      control_->submit(operation->operation.request,
                       *operation->key,
                       token_of(operation),
                       is_alone ? input_at_hand(operation->operation) : std::span<std::byte>());
    }
    moved = true;
  }
  if (leave_requested_.load(std::memory_order_acquire) && !std::exchange(leave_reported_, true)) {
    control_->leave();
    moved = true;
  }
  return moved;
}

Result<bool> Core::read_links() {
  bool moved = false;
  const std::uint32_t interval =
      world_.transport == nullptr ? kStepsBetweenDescriptors : kStepsBetweenDescriptorsOnNetwork;
  if (steps_ % interval == 0 || std::exchange(look_at_descriptors_, false)) {
    LIGHTCC_ASSIGN_OR_RETURN(moved, service_descriptors());
  }
  if (world_.parent.has_value() && world_.parent->fd() < 0) {
    moved = read_link(kParentLink) || moved;
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    if (world_.children[i].fd() < 0) {
      moved = read_link(static_cast<LinkIndex>(i)) || moved;
    }
  }
  return moved;
}

ControlLink& Core::link(LinkIndex index) {
  return index == kParentLink ? *world_.parent : world_.children[static_cast<std::size_t>(index)];
}

bool Core::read_link(LinkIndex index) {
  ControlLink& from = link(index);
  bool moved = false;
  while (!from.is_broken() && !control_->is_over()) {
    auto frame = from.receive();
    if (!frame.ok()) {
      on_broken_link(index, frame.status());
      return true;
    }
    if (!frame->has_value()) {
      return moved;
    }
    moved = true;
    control_->on_frame(index, std::move(**frame), clock_.now());
  }
  return moved;
}

void Core::on_broken_link(LinkIndex index, const Status& error) {
  ControlLink& broken = link(index);
  broken.mark_broken();
  if (broken.fd() >= 0) {
    waker_->unwatch(broken.fd());
  }
  control_->on_link_closed(index, error, clock_.now());
}

bool Core::flush_links() {
  bool moved = false;
  const auto flush = [&](LinkIndex index) {
    ControlLink& to = link(index);
    if (to.is_broken() || !to.has_backlog()) {
      return;
    }
    const auto sent = to.flush();
    moved = moved || !sent.ok() || *sent;
    if (!sent.ok() && !control_->is_over()) {
      read_link(index);  // Its last words count for more than that it does not listen.
      if (!to.is_broken()) {
        on_broken_link(index, sent.status());
      }
      act();
    }
  };
  if (world_.parent.has_value()) {
    flush(kParentLink);
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    flush(static_cast<LinkIndex>(i));
  }
  return moved;
}

Status Core::tick() {
  LIGHTCC_RETURN_IF_ERROR(service_descriptors().status());
  const TimePoint now = clock_.now();
  const bool is_busy = busy();
  liveness_->beat(is_busy);
  liveness_->tell(*control_, now);
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
  if (autotune_log_ != nullptr) {
    for (const Autotuner::Sample& sample : control_->take_samples()) {
      autotune_log_->write(sample);
    }
    if (!control_->is_autotuning()) {
      autotune_log_.reset();
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
    Bucket bucket{agreed->process_set, agreed->lane, {}};
    bucket.tensors.reserve(agreed->tensors.size());
    for (MatchedTensor& tensor : agreed->tensors) {
      BucketTensor& added = bucket.tensors.emplace_back();
      added.agreed = std::move(tensor.agreed);
      added.operation = operation_of(tensor.operation);
    }
    executor_->run(std::move(bucket));
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
  } else if (const auto* tuning = std::get_if<ApplyTuning>(&action)) {
    tune_ = tuning->tune;
    executor_->set_chunk_bytes(tuning->tune.tuning.chunk_bytes);
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
  operations_.fail_all(end.status);
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

// --- Descriptors
// ----------------------------------------------------------------------------------

Result<bool> Core::service_descriptors() {
  const auto tags = waker_->ready();
  for (const std::uint64_t tag : tags) {
    LIGHTCC_RETURN_IF_ERROR(on_descriptor(tag));
  }
  return !tags.empty();
}

Status Core::on_descriptor(std::uint64_t tag) {
  const std::size_t number = number_of(tag);
  switch (source_of(tag)) {
    case Source::kTransport:
      return world_.transport->poll().status();
    case Source::kControl:
      read_link(link_of(number));
      return {};
    case Source::kLocalSocket:
      return on_local_socket(number);
    case Source::kProcess:
      break;
  }
  on_death(number);
  return {};
}

// A rank's socket within the host carries segments to followers; at the leader, only its end is
// news.
Status Core::on_local_socket(std::size_t position) {
  const int socket = world_.host.sockets[position].get();
  if (!world_.host.is_leader()) {
    // What the leader sent before it went counts, and so does what this rank cannot take in.
    const Status received = executor_->receive_segments();
    if (received.ok() || received.code() != ErrorCode::kPeerFailed || !has_ended(socket)) {
      return received;
    }
  } else if (!has_ended(socket)) {
    return {};
  }
  waker_->unwatch(socket);
  on_death(position);
  return {};
}

// A process of this host is gone; what it said before it went counts first.
void Core::on_death(std::size_t position) {
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    read_link(static_cast<LinkIndex>(i));
  }
  if (world_.parent.has_value()) {
    read_link(kParentLink);
  }
  liveness_->unwatch(*waker_, position);
  control_->on_death(liveness_->death_of(position));
}

bool Core::may_close() const {
  // Children with a backlog have not heard it yet.
  return control_->is_closing() && !over() && executor_->idle() && !children_have_backlog();
}

bool Core::children_have_backlog() const {
  return std::ranges::any_of(world_.children, [](const ControlLink& child) {
    return child.has_backlog() && !child.is_broken();
  });
}

void Core::read_to_the_end(TimePoint deadline) {
  const auto read = [&](ControlLink& from) {
    while (from.fd() >= 0 && !from.is_broken()) {
      auto frame = from.receive();
      const bool ended = !frame.ok();
      if (ended || (!frame->has_value() &&
                    !wait_readable(from.fd(), deadline, "the end of a control link").ok())) {
        return;
      }
    }
  };
  if (!control_->is_closing()) {
    return;
  }
  if (world_.parent.has_value()) {
    read(*world_.parent);
  }
  for (ControlLink& child : world_.children) {
    read(child);
  }
}

std::shared_ptr<const ProcessSetTable> Core::process_sets() const {
  const MutexLock lock(sets_mutex_);
  return process_sets_;
}

void Core::fill_stats(WorldStats& stats) const {
  stats.buckets = executor_->buckets();
  stats.inline_allreduces = executor_->inline_allreduces();
  stats.topk = executor_->topk().counters();
  stats.compressed = executor_->topk().usage();
  stats.allreduce_costs = executor_->allreduce_costs();
  if (tune_.has_value()) {
    stats.tuning = tune_->tuning;
    stats.tuning_is_final = tune_->is_final;
  }
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
