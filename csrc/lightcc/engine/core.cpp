#include "lightcc/engine/core.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lightcc/base/log.hpp"
#include "lightcc/engine/host_discovery.hpp"

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

// While the loop spins it looks at descriptors (a system call) once in so many steps: rarely on one
// host, where they only tell of deaths and new segments, often where control links are sockets.
constexpr std::uint32_t kStepsBetweenDescriptors = 256;
constexpr std::uint32_t kStepsBetweenDescriptorsOnNetwork = 4;
// How long the news of a failure may take along the tree of control links, longer than a connection
// that a survivor closes in consequence.
constexpr Duration kNewsDelay = std::chrono::milliseconds(300);

bool has_ended(int socket) {
  std::byte probe{};
  const auto count = ::recv(socket, &probe, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

// Whatever a child takes part in, it has outstanding; only the ends of the world come unasked.
bool concerns_idle_children(const Frame& frame) {
  if (const auto* commands = std::get_if<std::vector<Command>>(&frame)) {
    return std::ranges::any_of(
        *commands, [](const Command& c) { return std::holds_alternative<ShutDown>(c); });
  }
  return std::holds_alternative<WorldError>(frame);
}

SequencerOptions sequencer_options(const Knobs& knobs, int size, FusionRule fusion) {
  SequencerOptions options;
  options.world_size = size;
  options.num_lanes = static_cast<int>(knobs.num_lanes);
  options.slot_capacity = static_cast<std::size_t>(knobs.cache_capacity);
  options.fusion = fusion;
  options.fusion_threshold_bytes = static_cast<std::uint64_t>(knobs.fusion_threshold_bytes);
  options.horovod_threshold_bytes = static_cast<std::uint64_t>(knobs.horovod_threshold_bytes);
  options.horovod_cycle = seconds(knobs.horovod_cycle_ms / 1e3);
  options.stall_check = knobs.stall_check;
  options.stall_warning = seconds(knobs.stall_warning_s);
  options.stall_shutdown = seconds(knobs.stall_shutdown_s);
  return options;
}

}  // namespace

Core::Core(Membership world, const Knobs& knobs, const Clock& clock, OperationTable& operations)
    : world_(std::move(world)),
      clock_(clock),
      operations_(operations),
      peer_timeout_(seconds(knobs.peer_timeout_s)),
      timeline_(clock),
      process_sets_(std::make_shared<const ProcessSetTable>(world_.topology.size)) {}

Result<std::unique_ptr<Core>> Core::make(Membership world,
                                         const Knobs& knobs,
                                         const Clock& clock,
                                         OperationTable& operations) {
  std::unique_ptr<Core> core(new Core(std::move(world), knobs, clock, operations));
  LIGHTCC_RETURN_IF_ERROR(core->start(knobs));
  return core;
}

Status Core::start(const Knobs& knobs) {
  LIGHTCC_ASSIGN_OR_RETURN(const SimdLevel simd, parse_simd_level(knobs.simd));
  LIGHTCC_ASSIGN_OR_RETURN(const FusionRule fusion, parse_fusion_strategy(knobs.fusion_strategy));
  HostMembership& host = world_.host;
  LIGHTCC_ASSIGN_OR_RETURN(
      waker_, Waker::make(host.words[static_cast<std::size_t>(host.index)], host.bell.get()));
  for (std::size_t place = 0; place < host.sockets.size(); ++place) {
    if (host.sockets[place].valid()) {
      LIGHTCC_RETURN_IF_ERROR(
          waker_->watch(host.sockets[place].get(), tag_of(Source::kLocalSocket, place)));
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
  }
  const TimePoint now = clock_.now();
  LIGHTCC_ASSIGN_OR_RETURN(
      liveness_, Liveness::start(world_, *waker_, tag_of(Source::kProcess, 0), peer_timeout_, now));
  next_tick_ = now;
  if (world_.topology.rank == 0) {
    sequencer_ =
        std::make_unique<Sequencer>(sequencer_options(knobs, world_.topology.size, fusion));
    set_up_autotune(knobs, fusion);
  }
  executor_ = std::make_unique<Executor>(world_, knobs, simd, clock_, operations_, timeline_);
  return executor_->add_process_set(
      kGlobalProcessSet, *process_sets()->find(kGlobalProcessSet), nullptr);
}

// hot
bool Core::step() {
  if (over()) {
    return false;
  }
  if (suspicion_.has_value()) {
    return await_news();
  }
  auto moved = try_step();
  if (moved.ok()) {
    return *moved;
  }
  if (may_be_secondhand(moved.status())) {
    suspect(moved.status());
  } else {
    fail(own_words(moved.status()));
  }
  return true;
}

// hot
Result<bool> Core::try_step() {
  bool moved = false;
  if (operations_.has_new() ||
      leave_requested_.load(std::memory_order_acquire) != leave_reported_) {
    LIGHTCC_RETURN_IF_ERROR(report_new());
    moved = true;
  }
  LIGHTCC_ASSIGN_OR_RETURN(const bool read, read_links());
  LIGHTCC_RETURN_IF_ERROR(announce());
  LIGHTCC_ASSIGN_OR_RETURN(const bool advanced, executor_->advance());
  if (sequencer_ != nullptr) {
    const auto finished = executor_->take_finished();
    for (const auto& [process_set, lane] : finished) {
      sequencer_->on_bucket_done(process_set, lane);
    }
    if (!finished.empty()) {
      LIGHTCC_RETURN_IF_ERROR(announce());
    }
  }
  LIGHTCC_ASSIGN_OR_RETURN(const bool flushed, flush_links());
  moved = moved || read || advanced || flushed;
  if (world_.transport != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool transported, world_.transport->poll());
    moved = moved || transported;
  }
  if ((++steps_ % kStepsBetweenDescriptors == 0 || !moved) && clock_.now() >= next_tick_) {
    LIGHTCC_RETURN_IF_ERROR(tick());
  }
  check_closing();
  return moved;
}

Duration Core::time_to_tick() const {
  const bool cycle = sequencer_ != nullptr && sequencer_->has_held();
  const TimePoint next = cycle ? std::min(next_tick_, sequencer_->next_cycle()) : next_tick_;
  return std::max<Duration>(next - clock_.now(), Duration::zero());
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
  const auto has_backlog = [](const ControlLink& link) { return link.has_backlog(); };
  // A timeline tells when others report: this rank wants to hear of it then.
  const bool waits = busy() || timeline_.is_on() || closing_ || suspicion_.has_value() ||
                     (world_.parent.has_value() && has_backlog(*world_.parent)) ||
                     std::ranges::any_of(world_.children, has_backlog);
  return waits ? kWaiting : kIdle;
}

// --- Links ------------------------------------------------------------------------------------

Result<bool> Core::read_links() {
  bool moved = false;
  const std::uint32_t interval =
      world_.transport == nullptr ? kStepsBetweenDescriptors : kStepsBetweenDescriptorsOnNetwork;
  if (steps_ % interval == 0 || std::exchange(look_at_descriptors_, false)) {
    LIGHTCC_ASSIGN_OR_RETURN(moved, service_descriptors());
  }
  if (world_.parent.has_value() && world_.parent->fd() < 0) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool read, read_link(*world_.parent));
    moved = moved || read;
  }
  for (ControlLink& child : world_.children) {
    if (child.fd() < 0) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool read, read_link(child));
      moved = moved || read;
    }
  }
  if (!relayed_.empty()) {
    LIGHTCC_RETURN_IF_ERROR(send_reports(std::exchange(relayed_, {})));
  }
  return moved;
}

Result<bool> Core::read_link(ControlLink& link) {
  bool moved = false;
  while (!over()) {
    auto frame = link.receive();
    if (!frame.ok()) {
      LIGHTCC_RETURN_IF_ERROR(peer_gone(frame.status()));
      if (link.fd() >= 0) {
        waker_->unwatch(link.fd());
      }
      return moved;
    }
    if (!frame->has_value()) {
      return moved;
    }
    moved = true;
    LIGHTCC_RETURN_IF_ERROR(on_frame(link, std::move(**frame)));
  }
  return moved;
}

Result<bool> Core::flush_links() {
  bool moved = false;
  const auto flush = [&](ControlLink& link) -> Status {
    if (!link.has_backlog()) {
      return {};
    }
    auto sent = link.flush();
    moved = moved || (sent.ok() && *sent);
    return sent.ok() ? Status() : peer_gone(sent.status());
  };
  if (world_.parent.has_value()) {
    LIGHTCC_RETURN_IF_ERROR(flush(*world_.parent));
  }
  for (ControlLink& child : world_.children) {
    LIGHTCC_RETURN_IF_ERROR(flush(child));
  }
  return moved;
}

Status Core::on_frame(ControlLink& link, Frame frame) {
  if (link.fd() >= 0) {
    liveness_->heard_from(link.peer_rank(), clock_.now());
  }
  const bool from_parent = world_.parent.has_value() && &link == &*world_.parent;
  if (auto* reports = std::get_if<std::vector<Report>>(&frame);
      reports != nullptr && !from_parent) {
    relayed_.insert(relayed_.end(),
                    std::make_move_iterator(reports->begin()),
                    std::make_move_iterator(reports->end()));
    return {};
  }
  if (auto* commands = std::get_if<std::vector<Command>>(&frame);
      commands != nullptr && from_parent) {
    broadcast(frame, &link);
    for (Command& command : *commands) {
      LIGHTCC_RETURN_IF_ERROR(apply(command));
    }
    return {};
  }
  if (const auto* error = std::get_if<WorldError>(&frame)) {
    broadcast(frame, &link);
    is_certain_ = true;
    return Status(error->code, error->message, error->rank);
  }
  if (std::holds_alternative<Heartbeat>(frame)) {
    return {};
  }
  return Status(ErrorCode::kPeerFailed,
                "rank " + std::to_string(link.peer_rank()) + " sent a frame of the wrong direction",
                link.peer_rank());
}

void Core::broadcast(const Frame& frame, const ControlLink* except) {
  const bool urgent = concerns_idle_children(frame);
  const auto send = [&](ControlLink& link) {
    if (&link != except) {
      // A link that fails here fails again when it is read, and is dealt with there.
      (void)link.send(frame, urgent);
      ++frames_sent_;
    }
  };
  if (world_.parent.has_value() && !std::holds_alternative<std::vector<Command>>(frame)) {
    send(*world_.parent);
  }
  for (ControlLink& child : world_.children) {
    send(child);
  }
}

// --- Descriptors and time -----------------------------------------------------------------------

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
      return read_link(number == 0 ? *world_.parent : world_.children[number - 1]).status();
    case Source::kLocalSocket:
      return on_local_socket(number);
    case Source::kProcess:
      break;
  }
  return on_death(number);
}

// A rank's socket within the host carries segments to followers; at the leader, only its end is
// news.
Status Core::on_local_socket(std::size_t place) {
  const int socket = world_.host.sockets[place].get();
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
  return on_death(place);
}

// A process of this host is gone; what it said before it went counts first.
Status Core::on_death(std::size_t place) {
  const Status death = liveness_->death_of(place);
  for (ControlLink& child : world_.children) {
    LIGHTCC_RETURN_IF_ERROR(read_link(child).status());
  }
  if (world_.parent.has_value()) {
    LIGHTCC_RETURN_IF_ERROR(read_link(*world_.parent).status());
  }
  liveness_->unwatch(*waker_, place);
  is_certain_ = true;  // Seen with own eyes.
  return peer_gone(death);
}

Status Core::tick() {
  const TimePoint now = clock_.now();
  next_tick_ = now + liveness_->interval();
  LIGHTCC_RETURN_IF_ERROR(service_descriptors().status());
  broadcast(Heartbeat{}, nullptr);
  LIGHTCC_RETURN_IF_ERROR(
      liveness_->tick(now, busy() || (sequencer_ != nullptr && sequencer_->has_pending())));
  if (sequencer_ != nullptr) {
    const auto stalls = sequencer_->check_stalls(now);
    for (const std::string& warning : stalls.warnings) {
      LIGHTCC_LOG(LogLevel::kWarning, "%s", warning.c_str());
    }
    LIGHTCC_RETURN_IF_ERROR(stalls.fatal);
  }
  if (closing_ && now > closing_deadline_) {
    return make_error(ErrorCode::kTimeout, "operations under way at shutdown did not finish");
  }
  return {};
}

// --- Ends ---------------------------------------------------------------------------------------

// Once the world is closing, ranks that are done go away; that is no failure.
Status Core::peer_gone(const Status& error) const {
  return closing_ ? Status() : error;
}

// What the system refuses concerns this rank, whoever is at the other end of a socket. All ranks
// hear of it in these words, unless it is another rank's news.
Status Core::own_words(const Status& error) const {
  const bool is_own = error.code() == ErrorCode::kSystem || error.code() == ErrorCode::kInternal;
  const int rank = world_.topology.rank;
  return !is_own || is_certain_
             ? error
             : Status(error.code(), "rank " + std::to_string(rank) + ": " + error.message(), rank);
}

// A connection that closes may be the consequence of a failure elsewhere, which its other end heard
// of earlier: then the error must name the rank that failed first, and not the messenger.
bool Core::may_be_secondhand(const Status& error) const {
  return !is_certain_ && world_.transport != nullptr && error.code() == ErrorCode::kPeerFailed;
}

void Core::suspect(const Status& error) {
  suspicion_ = error;
  // A stopped leader cannot pass news on; then this rank finds it silent itself, a heartbeat later.
  news_deadline_ = clock_.now() + kNewsDelay + 2 * liveness_->interval();
  next_tick_ = clock_.now();
  if (world_.transport->wait_fd() >= 0) {
    waker_->unwatch(world_.transport->wait_fd());  // Nobody reads it any more.
  }
}

bool Core::await_news() {
  const TimePoint now = clock_.now();
  std::optional<Status> death;  // Of a process of this host; it counts after what it said.
  for (const std::uint64_t tag : waker_->ready()) {
    const std::size_t place = number_of(tag);
    if (source_of(tag) == Source::kProcess ||
        (source_of(tag) == Source::kLocalSocket && has_ended(world_.host.sockets[place].get()))) {
      death = liveness_->death_of(place);
    }
  }
  std::optional<Status> news;
  const auto listen = [&](ControlLink& link) {
    while (!news.has_value()) {
      auto frame = link.receive();
      if (!frame.ok()) {
        news = frame.status();
        return;
      }
      if (!frame->has_value()) {
        return;
      }
      liveness_->heard_from(link.peer_rank(), now);
      if (const auto* error = std::get_if<WorldError>(&**frame)) {
        news.emplace(error->code, error->message, error->rank);
      }
    }
  };
  if (world_.parent.has_value()) {
    listen(*world_.parent);
  }
  for (ControlLink& child : world_.children) {
    listen(child);
  }
  if (!news.has_value()) {
    news = std::move(death);
  }
  if (!news.has_value() && now >= next_tick_) {
    next_tick_ = now + liveness_->interval() / 4;
    if (const Status silent = liveness_->tick(now, true); !silent.ok()) {
      news = silent;
    }
  }
  if (!news.has_value() && now < news_deadline_) {
    return false;
  }
  fail(news.value_or(*suspicion_));
  return true;
}

void Core::fail(const Status& error) {
  if (over()) {
    return;
  }
  executor_->drop_all();
  timeline_.world_failed(error);
  operations_.fail_all(error);
  sequencer_.reset();
  broadcast(WorldError{error.code(), error.rank(), error.message()}, nullptr);
  failed_.store(true, std::memory_order_release);
  over_.store(true, std::memory_order_release);
  operations_.notify();
}

void Core::check_closing() {
  if (!closing_ || !executor_->idle() || over()) {
    return;
  }
  const auto has_backlog = [](const ControlLink& link) { return link.has_backlog(); };
  if (std::ranges::any_of(world_.children, has_backlog)) {
    return;  // They have not heard it yet.
  }
  if (world_.parent.has_value()) {
    world_.parent->finish_sending();
  }
  for (ControlLink& child : world_.children) {
    child.finish_sending();
  }
  operations_.fail_all(Status(
      ErrorCode::kShutDown,
      "Horovod has been shut down. This was caused by an exception on one of the ranks or by "
      "rank " +
          std::to_string(closed_by_) + " finishing before the others.",
      closed_by_));
  over_.store(true, std::memory_order_release);
  operations_.notify();
}

void Core::read_to_the_end(TimePoint deadline) {
  const auto read = [&](ControlLink& link) {
    while (link.fd() >= 0) {
      auto frame = link.receive();
      const bool ended = !frame.ok();
      if (ended || (!frame->has_value() &&
                    !wait_readable(link.fd(), deadline, "the end of a control link").ok())) {
        return;
      }
    }
  };
  if (!closing_) {
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

void Core::replace_process_sets(ProcessSetTable table) {
  auto next = std::make_shared<const ProcessSetTable>(std::move(table));
  const MutexLock lock(sets_mutex_);
  process_sets_ = std::move(next);
}

void Core::fill_stats(WorldStats& stats) const {
  stats.buckets = executor_->buckets();
  stats.topk = executor_->topk().counters();
  stats.allreduce_costs = executor_->allreduce_costs();
  if (tune_.has_value()) {
    stats.tuning = tune_->tuning;
    stats.tuning_is_final = tune_->is_final;
  }
  stats.control_frames_sent = frames_sent_;
  if (world_.transport != nullptr) {
    stats.network_bytes_sent = world_.transport->bytes_sent();
    stats.network_bytes_received = world_.transport->bytes_received();
  }
}

}  // namespace lightcc
