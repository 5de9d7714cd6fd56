#include "lightcc_cuda/nccl/launcher.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "lightcc_cuda/staging/stream_event.hpp"

namespace lightcc::cuda {
namespace {

// How often the thread looks whether the GPU or NCCL has gone on.
constexpr Duration kNcclPoll = std::chrono::microseconds(50);
// How often a communicator that has work is asked for errors.
constexpr Duration kErrorInterval = std::chrono::milliseconds(10);
// How long the end of the thread may take.
constexpr Duration kPatienceOfEnd = std::chrono::seconds(5);
// How long communicators may take to end in order, before they are aborted.
constexpr Duration kPatienceOfFree = std::chrono::seconds(2);

Status has_ended_before() {
  return {ErrorCode::kShutDown, "the communicators of NCCL have ended"};
}

}  // namespace

// ---- Whoever asks.

void NcclLauncher::split(std::shared_ptr<NcclComm> comm, int position, int part) {
  const MutexLock lock(mutex_);
  if (is_over_ || is_lost_) {
    finish(*comm, has_ended_before());
    return;
  }
  asked_.chores.push_back({.comm = std::move(comm), .position = position, .part = part});
  changed_.notify_all();
}

void NcclLauncher::free(std::shared_ptr<NcclComm> comm) {
  const MutexLock lock(mutex_);
  asked_.chores.push_back({.comm = std::move(comm), .frees = true});
  changed_.notify_all();
}

void NcclLauncher::post(std::shared_ptr<NcclJob> job) {
  const MutexLock lock(mutex_);
  if (is_over_ || is_lost_) {
    finish(*job, has_ended_before());
    return;
  }
  asked_.jobs.push_back(std::move(job));
  changed_.notify_all();
}

bool NcclLauncher::end(bool aborts) {
  const TimePoint deadline = clock_.now() + kPatienceOfEnd;
  const MutexLock lock(mutex_);
  asked_.ends = true;
  asked_.aborts = asked_.aborts || aborts;
  changed_.notify_all();
  while (!is_over_ && !is_lost_ && clock_.now() < deadline) {
    (void)changed_.wait_for(mutex_, deadline - clock_.now());
  }
  is_lost_ = !is_over_;
  return is_over_;
}

bool NcclLauncher::is_lost() {
  const MutexLock lock(mutex_);
  return is_lost_;
}

bool NcclLauncher::is_over() {
  const MutexLock lock(mutex_);
  return is_over_;
}

// ---- The thread.

void NcclLauncher::serve() {
  Status ended = serve_gpu();
  if (ended.ok()) {
    ended = has_ended_before();
  }
  Asked left = await(true);
  while (true) {
    for (const Chore& chore : left.chores) {
      finish(*chore.comm, ended);
    }
    for (const auto& job : left.jobs) {
      finish(*job, ended);
    }
    {
      const MutexLock lock(mutex_);
      if (asked_.ends) {
        is_over_ = true;
        changed_.notify_all();
        return;
      }
    }
    left = await(false);
  }
}

NcclLauncher::Asked NcclLauncher::await(bool is_busy) {
  const MutexLock lock(mutex_);
  const auto has_requests = [this]() LIGHTCC_REQUIRES(mutex_) {
    return asked_.ends || !asked_.chores.empty() || !asked_.jobs.empty();
  };
  if (is_busy && !has_requests()) {
    (void)changed_.wait_for(mutex_, kNcclPoll);
  }
  while (!is_busy && !has_requests()) {
    changed_.wait(mutex_);
  }
  Asked taken{.chores = std::move(asked_.chores),
              .jobs = std::move(asked_.jobs),
              .ends = asked_.ends,
              .aborts = asked_.aborts};
  asked_.chores.clear();
  asked_.jobs.clear();
  return taken;
}

bool NcclLauncher::must_end() {
  const MutexLock lock(mutex_);
  return asked_.ends;
}

Status NcclLauncher::serve_gpu() {
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<const SharedGpu> gpu,
                           SharedGpu::open(setup_.driver, setup_.device));
  const Driver& driver = gpu->driver();
  const CurrentContext current(gpu->context());
  LIGHTCC_RETURN_IF_ERROR(current.status());
  gpu_ = gpu;
  driver_ = &driver;
  context_ = &gpu->context();
  rows_.emplace(driver, setup_.device, "NCCL");
  Status served = make_world();
  if (served.ok()) {
    served = serve_requests();
  }
  if (served.ok()) {
    free_all();
  }
  abort_all();
  for (const Chore& chore : chores_) {
    finish(*chore.comm, Status(ErrorCode::kShutDown, "the communicator was aborted"));
  }
  for (const Running& running : running_) {
    finish(*running.job, Status(ErrorCode::kShutDown, "the operation was aborted"));
  }
  chores_.clear();
  waiting_.clear();
  end_all_spans(served);
  running_.clear();
  rows_.reset();
  for (const auto& comm : comms_) {
    comm->stream_.reset();  // The last one of a stream waits. What it uses goes later.
  }
  for (const auto& comm : comms_) {
    comm->scratch_.clear();
  }
  comms_.clear();
  gpu_ = nullptr;
  return served;
}

Status NcclLauncher::make_world() {
  NcclConfig config;
  comms_.push_back(world_);
  LIGHTCC_RETURN_IF_ERROR(setup_.library.check(
      setup_.library.call().init(&world_->handle_, setup_.size, setup_.id, setup_.rank, &config),
      "ncclCommInitRankConfig",
      nullptr));
  const TimePoint deadline = deadline_from_now(setup_.start_patience);
  while (!must_end()) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool made, is_ready(world_->handle_, "ncclCommInitRankConfig"));
    if (made) {
      return {};
    }
    if (clock_.now() >= deadline) {
      return make_error(ErrorCode::kTimeout,
                        "rank %d waited for NCCL's ncclCommInitRankConfig, to which not all ranks "
                        "came in time",
                        setup_.rank);
    }
    std::this_thread::sleep_for(kNcclPoll);
  }
  return {ErrorCode::kShutDown, "the communicator was aborted while it was made"};
}

// OK: it was told to end, and nothing is left to be done.
Status NcclLauncher::serve_requests() {
  std::optional<TimePoint> end_by;
  while (true) {
    const bool is_busy = !chores_.empty() || !waiting_.empty() || !running_.empty();
    Asked asked = await(is_busy);
    if (asked.aborts) {
      return {ErrorCode::kShutDown, "the communicators of NCCL were aborted"};
    }
    std::ranges::move(asked.chores, std::back_inserter(chores_));
    std::ranges::move(asked.jobs, std::back_inserter(waiting_));
    advance_chores();
    advance_launches();
    advance_running();
    if (!asked.ends) {
      continue;
    }
    if (chores_.empty() && waiting_.empty() && running_.empty()) {
      return {};
    }
    end_by = end_by.value_or(clock_.now() + kPatienceOfFree);
    if (clock_.now() >= *end_by) {
      return {ErrorCode::kShutDown, "the communicators of NCCL did not end in order"};
    }
    std::this_thread::sleep_for(kNcclPoll);
  }
}

Result<bool> NcclLauncher::is_ready(NcclHandle* comm, const char* what) const {
  NcclCode state = kNcclSuccess;
  LIGHTCC_RETURN_IF_ERROR(setup_.library.check(
      setup_.library.call().async_error(comm, &state), "ncclCommGetAsyncError", comm));
  LIGHTCC_RETURN_IF_ERROR(setup_.library.check(state, what, comm));
  return state != kNcclInProgress;
}

void NcclLauncher::advance_chores() {
  while (!chores_.empty()) {
    Chore& chore = chores_.front();
    if (chore.frees && has_work(*chore.comm)) {
      return;  // That has a deadline of its own.
    }
    if (!chore.has_begun) {
      chore.deadline = deadline_from_now(setup_.operation_patience);
    }
    Result<bool> over = chore.frees ? advance_free(chore) : advance_split(chore);
    if (over.ok() && !*over && clock_.now() >= chore.deadline) {
      over = make_error(ErrorCode::kTimeout,
                        "rank %d waited for NCCL's %s, to which not all ranks came in time",
                        setup_.rank,
                        chore.frees ? "ncclCommFinalize" : "ncclCommSplit");
    }
    if (over.ok() && !*over) {
      return;
    }
    finish(*chore.comm, over.status());
    chores_.pop_front();
  }
}

Result<std::shared_ptr<Stream>> NcclLauncher::stream_for_comm() {
  std::shared_ptr<Stream> stream = stream_.lock();
  if (stream == nullptr || setup_.begins_in_order) {
    LIGHTCC_ASSIGN_OR_RETURN(Stream made, Stream::create(*driver_));
    stream = std::make_shared<Stream>(std::move(made));
    stream_ = stream;
  }
  return stream;
}

Result<bool> NcclLauncher::advance_split(Chore& chore) {
  NcclComm& comm = *chore.comm;
  if (!chore.has_begun) {
    chore.has_begun = true;
    if (chore.position >= 0) {
      LIGHTCC_ASSIGN_OR_RETURN(comm.stream_, stream_for_comm());
      comms_.push_back(chore.comm);
    }
    NcclConfig config;
    LIGHTCC_RETURN_IF_ERROR(setup_.library.check(
        setup_.library.call().split(world_->handle_,
                                    chore.position >= 0 ? chore.part : kNcclNoColor,
                                    std::max(chore.position, 0),
                                    &comm.handle_,
                                    &config),
        "ncclCommSplit",
        world_->handle_));
  }
  LIGHTCC_ASSIGN_OR_RETURN(const bool is_split, is_ready(world_->handle_, "ncclCommSplit"));
  if (!is_split || chore.position < 0) {
    return is_split;
  }
  // The new communicator may have to go on by itself.
  return comm.handle_ == nullptr ? Result<bool>(false) : is_ready(comm.handle_, "ncclCommSplit");
}

Result<bool> NcclLauncher::advance_free(Chore& chore) {
  NcclComm& comm = *chore.comm;
  if (comm.handle_ != nullptr) {
    if (!chore.has_begun) {
      chore.has_begun = true;
      LIGHTCC_RETURN_IF_ERROR(setup_.library.check(
          setup_.library.call().finalize(comm.handle_), "ncclCommFinalize", comm.handle_));
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool is_over, is_ready(comm.handle_, "ncclCommFinalize"));
    if (!is_over) {
      return false;
    }
    comm.destruction_ = std::make_unique<SideCall>(
        *context_,
        [destroy = setup_.library.call().destroy, handle = std::exchange(comm.handle_, nullptr)] {
          return destroy(handle);
        });
  }
  if (comm.destruction_ != nullptr) {
    if (!comm.destruction_->is_over()) {
      return false;
    }
    const NcclCode code = comm.destruction_->code();
    comm.destruction_ = nullptr;
    LIGHTCC_RETURN_IF_ERROR(setup_.library.check(code, "ncclCommDestroy", nullptr));
  }
  comm.stream_.reset();
  comm.scratch_.clear();
  std::erase(comms_, chore.comm);
  return true;
}

// What was enqueued may be done for whoever has asked for it.
bool NcclLauncher::has_work(const NcclComm& comm) const {
  const auto is_on = [&](const auto& job) { return job->comm_.get() == &comm; };
  return std::ranges::any_of(waiting_, is_on) ||
         std::ranges::any_of(running_, is_on, &Running::job);
}

// In the order in which they were posted: where NCCL is not ready for one, the others wait.
void NcclLauncher::advance_launches() {
  while (!waiting_.empty()) {
    const std::shared_ptr<NcclJob> job = waiting_.front();
    const Result<bool> launched = launch(job);
    if (launched.ok() && !*launched) {
      return;
    }
    if (!launched.ok()) {
      end_span(launch_span_, launched.status());
      finish(*job, launched.status());
    }
    is_launching_ = false;
    waiting_.pop_front();
  }
}

Result<bool> NcclLauncher::launch(const std::shared_ptr<NcclJob>& job) {
  if (!is_launching_) {
    is_launching_ = true;
    launch_deadline_ = deadline_from_now(setup_.operation_patience);
  }
  const NcclComm& comm = *job->comm_;
  if (comm.handle_ == nullptr || comm.stream_ == nullptr) {
    return make_error(ErrorCode::kInternal, "%s: the communicator is gone", job->what_.c_str());
  }
  if (job->run_) {
    LIGHTCC_RETURN_IF_ERROR(call(*job));
  }
  LIGHTCC_ASSIGN_OR_RETURN(const bool is_taken, is_ready(comm.handle_, job->what_.c_str()));
  if (!is_taken) {
    // From 2.22 on it connects to peers in the first operations.
    if (clock_.now() >= launch_deadline_) {
      return make_error(ErrorCode::kTimeout,
                        "rank %d waited for NCCL's %s to begin, for which not all ranks were there "
                        "in time",
                        setup_.rank,
                        job->what_.c_str());
    }
    return false;
  }
  LIGHTCC_RETURN_IF_ERROR(finish_call(*job));
  LIGHTCC_ASSIGN_OR_RETURN(job->event_, SharedEvent::record(gpu_, comm.stream_->get()));
  running_.push_back({.job = job,
                      .event = job->event_,
                      .stream = comm.stream_->get(),
                      .deadline = launch_deadline_,
                      .span = std::exchange(launch_span_, nullptr)});
  job->is_enqueued_.store(true, std::memory_order_release);
  return true;
}

Status NcclLauncher::call(NcclJob& job) {
  StreamHandle* const stream = job.comm_->stream_->get();
  for (const auto& input : job.inputs_) {
    for (EventHandle* const event : events_of(*input)) {
      LIGHTCC_RETURN_IF_ERROR(
          driver_->check(driver_->call().wait_for_event(stream, event, 0), "cuStreamWaitEvent"));
    }
  }
  if (job.trace_ != nullptr) {
    launch_span_ = rows_->begin({.trace = job.trace_, .what = job.what_}, stream);
  }
  const NcclOperation run = std::exchange(job.run_, nullptr);
  return run(NcclCalls(setup_.library, *driver_, *job.comm_));
}

Status NcclLauncher::finish_call(const NcclJob& job) {
  NcclComm& comm = *job.comm_;
  for (const NcclOp op : std::exchange(comm.ops_, {})) {
    LIGHTCC_RETURN_IF_ERROR(setup_.library.check(
        setup_.library.call().destroy_op(op, comm.handle_), "ncclRedOpDestroy", comm.handle_));
  }
  if (launch_span_ != nullptr) {
    rows_->close(launch_span_.get());  // Before the event by which its end is known.
  }
  return {};
}

void NcclLauncher::advance_running() {
  std::vector<Running> left;
  for (Running& running : running_) {
    // A stream does one after another.
    const bool is_first = std::ranges::none_of(
        left, [&](const Running& other) { return other.stream == running.stream; });
    const Result<bool> ended = has_ended(running, is_first);
    if (ended.ok() && !*ended) {
      left.push_back(std::move(running));
    } else {
      end_span(running.span, ended.status());
      finish(*running.job, ended.status());
    }
  }
  running_ = std::move(left);
}

void NcclLauncher::end_span(std::unique_ptr<OpenSpan>& span, const Status& status) {
  if (span != nullptr) {
    rows_->end(std::exchange(span, nullptr), status);
  }
}

void NcclLauncher::end_all_spans(const Status& why) {
  const Status aborted =
      why.ok() ? Status(ErrorCode::kShutDown, "the communicators of NCCL were aborted") : why;
  end_span(launch_span_, aborted);
  for (Running& running : running_) {
    end_span(running.span, aborted);
  }
}

Result<bool> NcclLauncher::are_inputs_ready(const NcclJob& job) {
  for (const auto& input : job.inputs_) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool ready, input->is_ready());
    if (!ready) {
      return false;
    }
  }
  return true;
}

Result<bool> NcclLauncher::has_ended(Running& running, bool is_first) {
  NcclJob& job = *running.job;
  const TimePoint now = clock_.now();
  LIGHTCC_ASSIGN_OR_RETURN(const bool could_begin,
                           job.began_.has_value() ? Result<bool>(true) : are_inputs_ready(job));
  if (is_first) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool has_passed, running.event->has_passed());
    if (has_passed) {
      return true;
    }
  }
  if (could_begin && !job.began_.has_value()) {
    job.began_ = now;
  }
  if (!could_begin || !is_first) {
    running.deadline = deadline_from_now(setup_.operation_patience);
  }
  NcclComm& comm = *job.comm_;
  if (now - comm.asked_ >= kErrorInterval) {
    comm.asked_ = now;
    LIGHTCC_RETURN_IF_ERROR(is_ready(comm.handle_, job.what_.c_str()).status());
  }
  if (now >= running.deadline) {
    return make_error(ErrorCode::kTimeout,
                      "rank %d waited for the end of NCCL's %s, which did not come in time",
                      setup_.rank,
                      job.what_.c_str());
  }
  return false;
}

// In order, as long as NCCL goes on. What is left is aborted.
void NcclLauncher::free_all() {
  const TimePoint deadline = clock_.now() + kPatienceOfFree;
  while (!comms_.empty() && clock_.now() < deadline) {
    Chore chore{.comm = comms_.back(), .frees = true};
    while (clock_.now() < deadline) {
      const Result<bool> over = advance_free(chore);
      if (!over.ok()) {
        return;
      }
      if (*over) {
        break;
      }
      std::this_thread::sleep_for(kNcclPoll);
    }
  }
}

// All side by side, as one may wait for what runs on another one. Whoever waits for this thread
// does so for a bounded time, and leaves it behind then.
void NcclLauncher::abort_all() {
  // What is being made belongs to NCCL's threads, until the world's communicator is aborted.
  std::vector<std::shared_ptr<NcclComm>> made;
  std::ranges::copy_if(
      comms_, std::back_inserter(made), [this](const auto& comm) { return is_made(*comm); });
  abort(made);
  abort(comms_);
  for (const auto& comm : comms_) {
    comm->destruction_ = nullptr;
  }
}

void NcclLauncher::abort(const std::vector<std::shared_ptr<NcclComm>>& comms) const {
  std::vector<std::unique_ptr<SideCall>> calls;
  for (const auto& comm : comms) {
    if (NcclHandle* const handle = std::exchange(comm->handle_, nullptr); handle != nullptr) {
      calls.push_back(std::make_unique<SideCall>(
          *context_, [abort = setup_.library.call().abort, handle] { return abort(handle); }));
    }
  }
}

bool NcclLauncher::is_made(const NcclComm& comm) const {
  return &comm == world_.get() || comm.is_done_.load(std::memory_order_acquire);
}

TimePoint NcclLauncher::deadline_from_now(Duration patience) const {
  return patience == Duration::zero() ? TimePoint::max() : clock_.now() + patience;
}

void NcclLauncher::finish(NcclJob& job, Status status) {
  job.status_ = std::move(status);
  job.has_ended_.store(true, std::memory_order_release);
}

// One that is freed was finished before.
void NcclLauncher::finish(NcclComm& comm, Status status) {
  if (!comm.is_done_.load(std::memory_order_relaxed)) {
    comm.status_ = std::move(status);
    comm.is_done_.store(true, std::memory_order_release);
  }
}

}  // namespace lightcc::cuda
