#include "lightcc/engine/executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "lightcc/engine/compressed_bucket.hpp"

namespace lightcc {

namespace {

// How long something may go unseen that nobody rings for, and that somebody is to ring for.
constexpr Duration kUnheardInterval = std::chrono::microseconds(50);
constexpr Duration kHeardInterval = std::chrono::milliseconds(10);

// Its tensors have so many on one rank, or an all-gather's result has.
std::uint64_t routed_bytes(const Bucket& bucket) {
  const BucketTensor& first = bucket.tensors.front();
  if (first.signature().op != OpType::kAllgather) {
    return byte_count(bucket);
  }
  const std::vector<std::size_t> parts = gathered_bytes(first);
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
}

}  // namespace

Executor::Executor(const Membership& world,
                   const Knobs& knobs,
                   Planes& planes,
                   ResidualStore& residuals,
                   const Clock& clock,
                   OperationTable& operations,
                   Timeline& timeline)
    : world_(world),
      num_lanes_(static_cast<std::size_t>(knobs.num_lanes)),
      staged_piece_bytes_(static_cast<std::size_t>(knobs.staged_piece_bytes)),
      two_level_asked_(knobs.two_level == true),
      clock_(clock),
      operations_(operations),
      timeline_(timeline),
      planes_(planes),
      residuals_(residuals) {}

Status Executor::add_process_set(std::uint32_t id,
                                 const std::vector<std::int32_t>& ranks,
                                 InFlight* waiting) {
  Set& set = sets_[id];
  set.ranks = ranks;
  set.lanes.resize(num_lanes_);
  set.waiting = waiting;
  set.member = std::ranges::find(ranks, world_.topology.rank) != ranks.end();
  if (set.member) {
    if (const auto position = planes_.host().compression_position(ranks)) {
      compression_positions_[id] = *position;
    }
  }
  ++sets_in_making_;
  LIGHTCC_RETURN_IF_ERROR(planes_.add_process_set(id, ranks));
  if (set.member) {
    set.facts = planes_.facts(id);
  }
  return {};
}

void Executor::remove_process_set(std::uint32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) {
    return;
  }
  for (const auto& lane : found->second.lanes) {
    queued_ -= lane.size();
    for (const Running& running : lane) {
      turns_.erase(running.turn.value_or(next_turn_));
    }
  }
  sets_.erase(found);
  compression_positions_.erase(id);
  residuals_.forget(id);
  step_counts_.forget(id);
  planes_.remove_process_set(id);
}

Status Executor::await_communicators(const Joining& joining) {
  const TimePoint deadline = std::max(joining.deadline, clock_.now() + kConnectPatience);
  while (sets_in_making_ > 0 && planes_.what_makes_groups() != nullptr) {
    LIGHTCC_RETURN_IF_ERROR(make_groups().status());
    const TimePoint now = clock_.now();
    if (now >= deadline) {
      return make_error(ErrorCode::kTimeout,
                        "rank %d waited for %s, to which not all ranks came",
                        world_.topology.rank,
                        planes_.what_makes_groups());
    }
    LIGHTCC_RETURN_IF_ERROR(joining.round.failure(now + std::chrono::milliseconds(1)));
  }
  return {};
}

Status Executor::run(Bucket bucket) {
  const auto found = sets_.find(bucket.process_set);
  if (found == sets_.end()) {
    return {};
  }
  const Signature& first = bucket.tensors.front().signature();
  const std::optional<Route> route = route_of(found->second, first, routed_bytes(bucket));
  if (!route.has_value()) {  // This rank has joined; what it submits itself was refused.
    return make_error(ErrorCode::kInvalidArgument,
                      "rank %d has joined and cannot take part in '%s': nothing there serves %s "
                      "memory",
                      world_.topology.rank,
                      first.name.c_str(),
                      memory_kind_name(first.memory));
  }
  ++queued_;
  auto& lane = found->second.lanes[bucket.lane % num_lanes_];
  Running& running = lane.emplace_back();
  running.bucket = std::move(bucket);
  running.route = *route;
  begin_steps(running);
  if (route->has_queue) {
    running.turn = next_turn_++;
    turns_.insert(*running.turn);
  }
  return {};
}

Status Executor::take_result(Bucket bucket, std::span<const std::byte> result) {
  constexpr const char* kHow = "INLINE";
  const TimePoint started = clock_.now();
  timeline_.started(bucket, kHow, residuals_.counters());
  BucketTensor& tensor = bucket.tensors.front();
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * out,
                           output_for(tensor, tensor.signature().shape, [](std::size_t bytes) {
                             return std::make_shared<OutputBuffer>(bytes);
                           }));
  std::memcpy(out, result.data(), result.size());
  timeline_.finished(bucket, kHow, started, residuals_.counters());
  ++inline_allreduces_;
  finish(bucket);
  return {};
}

Result<bool> Executor::advance() {
  bool moved = false;
  if (sets_in_making_ > 0 || planes_.host().has_outgoing()) {
    LIGHTCC_ASSIGN_OR_RETURN(moved, make_groups());
  }
  time_to_look_ = planes_.host().has_outgoing() ? kUnheardInterval : Duration::max();
  LIGHTCC_ASSIGN_OR_RETURN(const bool finished, advance_unfinished());
  moved = moved || finished;
  if (queued_ == 0) {
    return moved;
  }
  for (auto& entry : sets_) {
    Set& set = entry.second;
    for (std::size_t lane = 0; lane < num_lanes_ && set.has_groups; ++lane) {
      if (!set.lanes[lane].empty()) {
        LIGHTCC_ASSIGN_OR_RETURN(const bool lane_moved, advance_lane(set, lane));
        moved = moved || lane_moved;
      }
    }
  }
  return moved;
}

Duration Executor::time_to_look() const {
  return time_to_look_;
}

Result<bool> Executor::make_groups() {
  // The end of a host socket is reported by the loop, after what its process said before.
  const auto made = planes_.make_groups();
  if (!made.ok() && made.status().code() != ErrorCode::kPeerFailed) {
    return made.status();
  }
  bool moved = made.ok() && *made;
  sets_in_making_ = 0;
  for (auto& [id, set] : sets_) {
    if (set.member && !set.has_groups) {
      set.has_groups = planes_.get_lanes(id, set.groups);
    }
    if (set.member && !set.has_groups) {
      ++sets_in_making_;
    } else if (set.waiting != nullptr) {
      Outcome outcome;
      outcome.value = static_cast<std::int32_t>(id);
      operations_.complete(*std::exchange(set.waiting, nullptr), {}, std::move(outcome));
      moved = true;
    }
  }
  return moved;
}

Result<bool> Executor::advance_lane(Set& set, std::size_t lane) {
  bool moved = false;
  auto& queue = set.lanes[lane];
  while (!queue.empty()) {
    Running& front = queue.front();
    if (front.work == nullptr) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool may, may_start(front));
      if (!may) {
        return moved;
      }
      LIGHTCC_RETURN_IF_ERROR(start(set, lane, front));
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, advance_work(front));
    moved = moved || progress != Progress::kIdle;
    std::shared_ptr<DeviceEnd> end;
    if (progress != Progress::kDone) {
      end = end_on_device(front);
    }
    if (progress != Progress::kDone && end == nullptr) {
      return moved;
    }
    end_front(set, queue, end);
    moved = true;
  }
  return moved;
}

Result<Progress> Executor::advance_work(const Running& running) {
  const DeviceTraceScope scope(running.trace);
  return running.work->advance();
}

void Executor::end_front(Set& set,
                         std::deque<Running>& queue,
                         const std::shared_ptr<DeviceEnd>& end) {
  Running& front = queue.front();
  count_on_device(front.route);
  if (end == nullptr) {
    front.work.reset();
    learn_cost(set, front);
  } else {
    std::vector<std::shared_ptr<OutputBuffer>> outputs;
    outputs.reserve(front.bucket.tensors.size());
    for (const BucketTensor& tensor : front.bucket.tensors) {
      outputs.push_back(tensor.outcome.output);
    }
    unfinished_.add({.work = std::move(front.work), .outputs = std::move(outputs)});
  }
  end_steps(front);
  release_turn(front);
  if (log_enabled(LogLevel::kDebug)) {
    log_bucket(front);
  }
  timeline_.finished(front.bucket, front.route.name, front.started, residuals_.counters());
  finished_.emplace_back(front.bucket.process_set, front.bucket.lane);
  finish(front.bucket, end);
  queue.pop_front();
  --queued_;
}

// An operation that fails on this rank alone is done when nothing touches its memory any more.
std::shared_ptr<DeviceEnd> Executor::end_on_device(const Running& running) const {
  const bool may = std::ranges::all_of(running.bucket.tensors,
                                       [](const BucketTensor& it) { return it.status.ok(); });
  return may ? running.work->device_end() : nullptr;
}

Result<bool> Executor::advance_unfinished() {
  if (unfinished_.empty()) {
    return false;
  }
  std::vector<UnfinishedBuckets::Entry> finished;
  const Status failed = unfinished_.advance(finished);
  if (!finished.empty()) {
    operations_.notify();  // Somebody may wait for that.
  }
  LIGHTCC_RETURN_IF_ERROR(failed);
  return !finished.empty();
}

Status Executor::start(const Set& set, std::size_t lane, Running& running) {
  Bucket& bucket = running.bucket;
  const Route& route = running.route;
  const MemoryKind kind = memory_kind(bucket);
  const MemoryKind plane = route.plane(kind);
  explain_adasum_once(set, running);
  const BucketSite site{.lane = (*set.groups[Planes::index_of(plane)])[lane],
                        .members = set.ranks,
                        .compression_position = compression_position(bucket.process_set),
                        .residuals = residuals_,
                        .devices = planes_.staging(kind)};
  if (kind != MemoryKind::kHost) {
    running.trace = timeline_.trace(bucket, route.name, std::move(running.inputs));
  }
  running.started = clock_.now();  // Devices may begin at once.
  const DeviceTraceScope scope(running.trace);
  LIGHTCC_ASSIGN_OR_RETURN(running.work, planes_.plane(plane)->start(bucket, route, site));
  timeline_.started(bucket, route.name, residuals_.counters());
  return {};
}

bool Executor::is_compressed(const Signature& signature) const {
  return signature.op == OpType::kAllreduce && signature.compression.has_value() &&
         compression_position(signature.process_set).has_value();
}

std::int64_t Executor::steps_ahead(const Signature& signature) const {
  if (!is_compressed(signature) || signature.is_automatic) {
    return 0;
  }
  const GridPosition position = *compression_position(signature.process_set);
  return step_counts_.ahead({signature.process_set, signature.name},
                            steps_made(signature, position, residuals_));
}

/// Whether ranks agree on the steps of its tensors.
bool Executor::counts_steps(const Running& running) {
  return running.route.algorithm == Algorithm::kCompressed &&
         running.bucket.tensors.front().signature().op == OpType::kAllreduce;
}

void Executor::begin_steps(Running& running) {
  if (!counts_steps(running)) {
    return;
  }
  for (BucketTensor& tensor : running.bucket.tensors) {
    const Signature& signature = tensor.signature();
    if (!signature.is_automatic) {  // Others are at their first step.
      tensor.steps =
          step_counts_.begin({running.bucket.process_set, signature.name}, signature.steps_ahead);
    }
  }
}

void Executor::end_steps(const Running& running) {
  if (!counts_steps(running)) {
    return;
  }
  for (const BucketTensor& tensor : running.bucket.tensors) {
    step_counts_.end({running.bucket.process_set, tensor.signature().name});
  }
}

std::optional<Route> Executor::route_of(const Set& set,
                                        const Signature& first,
                                        std::uint64_t bytes) const {
  RouteFacts facts{.host = *set.facts[Planes::index_of(MemoryKind::kHost)],
                   .may_stage = planes_.staging(first.memory) != nullptr,
                   .may_compress = compression_position(first.process_set).has_value(),
                   .piece_bytes = staged_piece_bytes_};
  if (const Plane* const own = planes_.plane(first.memory); own != nullptr && own->runs(first)) {
    facts.own = set.facts[Planes::index_of(first.memory)];
  }
  return route(first, bytes, facts);
}

std::string Executor::why_unsupported(const Operation& operation) const {
  const Signature& signature = operation.request.signature;
  if (signature.memory == MemoryKind::kHost) {
    return {};
  }
  const auto found = sets_.find(signature.process_set);
  if (found == sets_.end()) {
    return {};
  }
  const std::optional<Route> route = route_of(found->second, signature, 0);
  return route.has_value() && route->carrier == Carrier::kNccl
             ? planes_.plane(signature.memory)->why_unsupported(operation)
             : std::string();
}

// Its inputs are there, or its device waits for them, and it is its turn.
Result<bool> Executor::may_start(Running& running) {
  if (running.turn.has_value() && *turns_.begin() != *running.turn) {
    return false;
  }
  bool ready = waits_on_device(running);
  if (!ready) {
    LIGHTCC_ASSIGN_OR_RETURN(ready, are_inputs_ready(running));
  }
  if (ready && !running.route.on_levels) {
    release_turn(running);  // It begins once.
  }
  return ready;
}

void Executor::release_turn(Running& running) {
  if (running.turn.has_value()) {
    turns_.erase(*std::exchange(running.turn, std::nullopt));
  }
}

Result<bool> Executor::are_inputs_ready(Running& running) {
  for (const BucketTensor& tensor : running.bucket.tensors) {
    if (const std::shared_ptr<ReadyEvent> event = ready_event_of(tensor); event != nullptr) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool ready, event->is_ready());
      if (!ready) {
        if (running.late != event) {
          running.late = event;
          running.late_rings = event->rings(planes_.bell());
        }
        time_to_look_ =
            std::min(time_to_look_, running.late_rings ? kHeardInterval : kUnheardInterval);
        return false;
      }
      take_input(running, tensor);
    }
  }
  return true;
}

// What is done when its device has been given all of it need not wait here for what that device
// computes. Other buckets have parts of the host, which reads what they bring.
bool Executor::waits_on_device(Running& running) {
  const Bucket& bucket = running.bucket;
  if (!running.route.has_queue || running.route.on_levels) {
    return false;
  }
  std::vector<std::shared_ptr<ReadyEvent>> inputs;
  for (const BucketTensor& tensor : bucket.tensors) {
    std::shared_ptr<ReadyEvent> event = ready_event_of(tensor);
    if (event != nullptr && (inputs.empty() || inputs.back() != event)) {
      inputs.push_back(std::move(event));
    }
  }
  if (!planes_.plane(memory_kind(bucket))->begin_behind(inputs)) {
    return false;
  }
  for (const BucketTensor& tensor : bucket.tensors) {
    take_input(running, tensor);
  }
  return true;
}

std::shared_ptr<ReadyEvent> Executor::ready_event_of(const BucketTensor& tensor) {
  return tensor.operation == nullptr ? nullptr : tensor.operation->operation.ready;
}

void Executor::take_input(Running& running, const BucketTensor& tensor) {
  std::shared_ptr<ReadyEvent> event = ready_event_of(tensor);
  if (event == nullptr) {
    return;
  }
  tensor.operation->operation.ready.reset();
  if (timeline_.is_on() && (running.inputs.empty() || running.inputs.back() != event)) {
    running.inputs.push_back(std::move(event));
  }
}

std::optional<GridPosition> Executor::compression_position(std::uint32_t process_set) const {
  const auto found = compression_positions_.find(process_set);
  return found == compression_positions_.end() ? std::nullopt : std::optional(found->second);
}

void Executor::finish(Bucket& bucket, const std::shared_ptr<DeviceEnd>& end) {
  ++buckets_;
  for (BucketTensor& tensor : bucket.tensors) {
    if (tensor.operation != nullptr) {
      if (is_transfer(tensor.signature().op)) {
        tensor.outcome.value = static_cast<std::int32_t>(tensor.per_member().front());
      }
      tensor.outcome.end = end;
      operations_.complete(*tensor.operation,
                           tensor.status,
                           tensor.status.ok() ? std::move(tensor.outcome) : Outcome());
    }
  }
}

void Executor::drop_all() {
  // Works before the groups (and their channels) that they use.
  unfinished_.drop_all();
  for (auto& entry : sets_) {
    for (auto& lane : entry.second.lanes) {
      lane.clear();
    }
  }
  for (const auto& entry : sets_) {
    planes_.remove_process_set(entry.first);
  }
  sets_.clear();
  turns_.clear();
  queued_ = 0;
  sets_in_making_ = 0;
  time_to_look_ = Duration::max();
}

}  // namespace lightcc
