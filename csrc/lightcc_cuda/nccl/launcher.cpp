#include "lightcc_cuda/nccl/launcher.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "lightcc_cuda/staging/stream_event.hpp"

namespace lightcc::cuda {
namespace {

// How often what runs is asked for errors, and calls that go on are looked at.
constexpr Duration kErrorInterval = std::chrono::milliseconds(10);
// How long no call may end while all communicators are freed. Then they are aborted.
constexpr Duration kPatienceOfEnd = std::chrono::seconds(5);
// How long an abort is waited for.
constexpr Duration kPatienceOfAbort = std::chrono::seconds(5);

}  // namespace

// ---- Whoever asks.

void NcclLauncher::split(std::shared_ptr<NcclComm> comm, int position, int part) {
  const MutexLock lock(mutex_);
  if (ended_.has_value()) {
    finish(*comm, *ended_);
    return;
  }
  chores_.push_back({.comm = std::move(comm), .position = position, .part = part});
  for_chores_.notify_all();
}

void NcclLauncher::free(std::shared_ptr<NcclComm> comm) {
  const MutexLock lock(mutex_);
  chores_.push_back({.comm = std::move(comm), .frees = true});
  for_chores_.notify_all();
}

void NcclLauncher::post(const std::shared_ptr<NcclJob>& job) {
  const MutexLock lock(mutex_);
  ++job->comm_->jobs_;
  if (ended_.has_value() || is_lost_) {
    finish(*job, ended_.value_or(was_aborted("the operation")));
    return;
  }
  jobs_.push_back(job);
  for_launches_.notify_all();
}

bool NcclLauncher::end(bool aborts) {
  const MutexLock lock(mutex_);
  if (!must_end_) {
    must_end_ = true;
    progress_ = clock_.now();
  }
  must_abort_ = must_abort_ || aborts;
  wakeup_->ring();
  changed_.notify_all();  // Who waits here without a limit has one from now on.
  std::optional<TimePoint> deadline;
  while (!is_over_ && !is_lost_) {
    if (!must_abort_ && !is_ending_) {
      changed_.wait(mutex_);
      continue;
    }
    deadline = deadline.value_or(clock_.now() + kPatienceOfAbort);
    is_lost_ = clock_.now() >= *deadline;
    if (!is_lost_) {
      (void)changed_.wait_for(mutex_, *deadline - clock_.now());
    }
  }
  changed_.notify_all();
  return is_over_;
}

std::optional<Status> NcclLauncher::opened(Duration patience) {
  const MutexLock lock(mutex_);
  if (failure_.ok() && !ended_.has_value() && (world_ == nullptr || !chores_.empty())) {
    (void)changed_.wait_for(mutex_, patience);
  }
  if (!failure_.ok()) {
    return failure_;
  }
  return ended_.has_value() || world_ == nullptr || !chores_.empty() ? ended_ : Status();
}

bool NcclLauncher::is_lost() {
  const MutexLock lock(mutex_);
  return is_lost_;
}

bool NcclLauncher::is_over() {
  const MutexLock lock(mutex_);
  return is_over_;
}

// ---- The thread that watches.

void NcclLauncher::serve() {
  const Status served = serve_gpu();
  const MutexLock lock(mutex_);
  refuse_all(served);
  is_over_ = true;
  changed_.notify_all();
}

void NcclLauncher::refuse_all(const Status& why) {
  ended_ = why.ok() ? Status(ErrorCode::kShutDown, "the communicators of NCCL have ended") : why;
  for (const Chore& chore : std::exchange(chores_, {})) {
    finish(*chore.comm, *ended_);
  }
  for (const auto& job : std::exchange(jobs_, {})) {
    finish(*job, *ended_);
  }
}

Status NcclLauncher::serve_gpu() {
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<const SharedGpu> gpu,
                           SharedGpu::open(setup_.driver, setup_.device));
  const CurrentContext current(gpu->context());
  LIGHTCC_RETURN_IF_ERROR(current.status());
  {
    const MutexLock lock(mutex_);
    rows_.emplace(gpu->driver(), setup_.device, "NCCL");
  }
  std::thread launcher;
  std::thread keeper;
  Status served;
  try {
    launcher = std::thread([self = shared_from_this(), gpu] { self->launch_all(gpu); });
    keeper = std::thread([self = shared_from_this(), gpu] { self->keep_comms(gpu); });
    served = watch();
  } catch (const std::system_error& error) {
    served = make_error(ErrorCode::kSystem, "cannot start a thread for NCCL: %s", error.what());
  }
  bool is_starting = false;
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    refuse_all(served);  // Before the abort, which may hang.
    is_starting = world_ == nullptr && chore_.goes_on();
    for_launches_.notify_all();
    for_chores_.notify_all();
    changed_.notify_all();
  }
  if (!served.ok()) {
    abort_all(gpu->context());
  }
  if (is_starting) {
    keeper.detach();  // NCCL has no safe way to end ncclCommInitRankConfig() from outside.
  }
  for (std::thread* const thread : {&launcher, &keeper}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
  end_all(served);
  return served;
}

// What is told to operations and communicators that did not come to their end.
void NcclLauncher::end_all(const Status& why) {
  const MutexLock lock(mutex_);
  std::ranges::move(launched_, std::back_inserter(running_));
  launched_.clear();
  for (Running& running : running_) {
    const Status reason = why.ok() ? was_aborted("the operation") : why;
    end_span(std::move(running.span), reason);
    finish(*running.job, reason);
  }
  running_.clear();
  rows_.reset();
  for (const auto& comm : comms_) {
    comm->scratch_ = nullptr;
    comm->stream_.reset();  // The last one of a stream waits.
  }
  comms_.clear();
}

Status NcclLauncher::watch() {
  while (true) {
    if (const std::optional<Status> over = await(); over.has_value()) {
      return *over;
    }
    check_running();
    check_calls();
  }
}

std::optional<Status> NcclLauncher::await() {
  Duration patience = Duration::max();
  {
    const MutexLock lock(mutex_);
    if (!launched_.empty() || must_abort_ || !failure_.ok()) {
      patience = Duration::zero();
    } else if (!running_.empty() || must_end_ || launch_.goes_on() || chore_.goes_on()) {
      patience = kErrorInterval;
    }
    is_idle_ = patience == Duration::max();
  }
  wakeup_->wait(patience);
  const MutexLock lock(mutex_);
  is_idle_ = false;
  std::ranges::move(launched_, std::back_inserter(running_));
  launched_.clear();
  if (must_abort_) {
    return was_aborted("NCCL");
  }
  if (!failure_.ok()) {
    return failure_;
  }
  return must_end_ ? end_in_order() : std::nullopt;
}

// Communicators are freed in order, as long as NCCL goes on. What is left is aborted.
std::optional<Status> NcclLauncher::end_in_order() {
  const bool is_launching = !jobs_.empty() || launch_.goes_on() || !running_.empty();
  const bool is_keeping = !chores_.empty() || chore_.goes_on();
  const bool is_stuck =
      launch_.has_failed || chore_.has_failed || clock_.now() >= progress_ + kPatienceOfEnd;
  if (is_stuck || (world_ == nullptr && is_keeping)) {
    return was_aborted("NCCL, which did not end in order,");
  }
  if (is_launching || is_keeping) {
    return std::nullopt;
  }
  if (comms_.empty() || is_freeing_) {
    return comms_.empty() ? Status() : was_aborted("a communicator that could not be freed");
  }
  is_freeing_ = true;
  std::ranges::transform(comms_.rbegin(), comms_.rend(), std::back_inserter(chores_), [](auto& it) {
    return Chore{.comm = it, .frees = true};
  });
  for_chores_.notify_all();
  return std::nullopt;
}

void NcclLauncher::check_running() {
  std::vector<Running> left;
  for (Running& running : running_) {
    // A stream does one after another.
    const bool is_first = std::ranges::none_of(
        left, [&](const Running& other) { return other.stream() == running.stream(); });
    const Result<bool> ended = has_ended(running, is_first);
    if (ended.ok() && !*ended) {
      left.push_back(std::move(running));
      continue;
    }
    const MutexLock lock(mutex_);
    end_span(std::move(running.span), ended.status());
    finish(*running.job, ended.status());
  }
  running_ = std::move(left);
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
  const NcclJob& job = *running.job;
  const TimePoint now = clock_.now();
  if (job.passing_->is_over()) {
    return true;
  }
  if (now < running.next_look) {
    return false;
  }
  running.next_look = now + kErrorInterval;
  if (!running.has_inputs) {
    LIGHTCC_ASSIGN_OR_RETURN(running.has_inputs, are_inputs_ready(job));
  }
  if (is_first) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool has_passed, job.event_->has_passed());
    if (has_passed) {
      return true;
    }
  }
  if (!running.has_inputs || !is_first) {
    running.deadline = deadline_from_now(setup_.operation_patience);
  }
  LIGHTCC_RETURN_IF_ERROR(error_of(*job.comm_, job.what_));
  if (now >= running.deadline) {
    return make_error(ErrorCode::kTimeout,
                      "rank %d waited for the end of NCCL's %s, which did not come in time",
                      setup_.rank,
                      job.what_.c_str());
  }
  return false;
}

Status NcclLauncher::error_of(NcclComm& comm, const std::string& what) {
  const TimePoint now = clock_.now();
  NcclHandle* const handle = comm.handle_;
  if (handle == nullptr || now - comm.asked_ < kErrorInterval) {
    return {};
  }
  comm.asked_ = now;
  NcclCode state = kNcclSuccess;
  LIGHTCC_RETURN_IF_ERROR(setup_.library.check(setup_.library.call().async_error(handle, &state),
                                               "ncclCommGetAsyncError"));
  return state == kNcclInProgress ? Status() : setup_.library.check(state, what.c_str());
}

// A call may not return while a peer that it needs is gone. It does when NCCL is aborted.
void NcclLauncher::check_calls() {
  const MutexLock lock(mutex_);  // A communicator may go when its call has returned.
  for (Call* const call : {&launch_, &chore_}) {
    if (!call->goes_on() || call->has_failed) {
      continue;
    }
    Status status = call->job == nullptr ? Status() : error_of(*call->job->comm_, call->what);
    if (status.ok() && clock_.now() >= call->deadline) {
      status = make_error(ErrorCode::kTimeout,
                          "rank %d waited for NCCL's %s%s not all ranks came in time",
                          setup_.rank,
                          call->what.c_str(),
                          call->job == nullptr ? ", to which" : " to begin, to which");
    }
    call->has_failed = !status.ok();
    if (call->has_failed && call->job != nullptr) {
      finish(*call->job, std::move(status));
    } else if (call->has_failed) {
      failure_ = std::move(status);
    }
  }
}

// ncclCommAbort() frees memory of the GPU, for which the driver waits until all of its work has
// ended. That may be an operation of another communicator, whose peer is dead: it ends when that
// one is aborted, and not before. So each call has a thread of its own. Whoever waits for this
// thread does so for a bounded time, and leaves it behind then.
void NcclLauncher::abort_all(const Context& context) {
  std::vector<NcclHandle*> handles;
  {
    const MutexLock lock(mutex_);
    for (const auto& comm : comms_) {
      handles.push_back(comm->handle_.exchange(nullptr));
    }
  }
  std::erase(handles, nullptr);
  std::vector<std::thread> threads;
  for (NcclHandle* const handle : handles) {
    const auto abort = [this, &context, handle] {
      (void)::pthread_setname_np(::pthread_self(), "lightcc-nccl-ab");
      const CurrentContext current(context);  // Where the GPU is broken there is none, and no need.
      (void)setup_.library.call().abort(handle);
    };
    try {
      threads.emplace_back(abort);
    } catch (const std::system_error&) {
      abort();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// ---- The thread that launches.

void NcclLauncher::launch_all(const std::shared_ptr<const SharedGpu>& gpu) {
  (void)::pthread_setname_np(::pthread_self(), "lightcc-nccl");
  const CurrentContext current(gpu->context());
  const auto kernels = current.status().ok() ? shared_kernels(gpu->context())
                                             : Result<SharedKernels>(current.status());
  auto notifier =
      kernels.ok() ? EventNotifier::make(gpu->driver()) : Result<EventNotifier>(kernels.status());
  while (const std::shared_ptr<NcclJob> job = next_job()) {
    std::unique_ptr<OpenSpan> span;
    const Status launched =
        notifier.ok() ? launch(*job, gpu, **kernels, *notifier, span) : notifier.status();
    const MutexLock lock(mutex_);
    const TimePoint deadline = launch_.deadline;
    end_call(launch_);
    if (!launched.ok() || job->has_ended()) {  // It was late, and nobody waits any more.
      finish(*job, launched);
      end_span(std::move(span), job->status());
    } else {
      launched_.push_back({.job = job,
                           .deadline = deadline,
                           .span = std::move(span),
                           .next_look = clock_.now() + kErrorInterval});
      if (is_idle_ || job->passing_->is_over()) {
        wakeup_->ring();  // Else that will ring.
      }
      ring();
    }
  }
}

std::shared_ptr<NcclJob> NcclLauncher::next_job() {
  const MutexLock lock(mutex_);
  while (jobs_.empty() && !is_ending_) {
    for_launches_.wait(mutex_);
  }
  if (is_ending_) {
    return nullptr;
  }
  std::shared_ptr<NcclJob> job = std::move(jobs_.front());
  jobs_.pop_front();
  begin_call(launch_, {.what = job->what_, .job = job}, setup_.operation_patience);
  return job;
}

Status NcclLauncher::launch(NcclJob& job,
                            const std::shared_ptr<const SharedGpu>& gpu,
                            const KernelTable& kernels,
                            EventNotifier& notifier,
                            std::unique_ptr<OpenSpan>& span) {
  NcclComm& comm = *job.comm_;
  if (comm.handle_ == nullptr || comm.stream_ == nullptr) {
    return make_error(ErrorCode::kInternal, "%s: the communicator is gone", job.what_.c_str());
  }
  const Driver& driver = gpu->driver();
  StreamHandle* const stream = comm.stream_->get();
  for (const auto& input : job.inputs_) {
    for (EventHandle* const event : events_of(*input)) {
      LIGHTCC_RETURN_IF_ERROR(driver.wait_for_event(stream, event, 0U));
    }
  }
  if (job.trace_ != nullptr) {
    const MutexLock lock(mutex_);
    span = rows_->begin({.trace = job.trace_, .what = job.what_}, stream);
  }
  const NcclOperation run = std::exchange(job.run_, nullptr);
  LIGHTCC_RETURN_IF_ERROR(run(NcclCalls(setup_.library, driver, kernels, comm)));
  for (const NcclOp op : std::exchange(comm.ops_, {})) {
    LIGHTCC_RETURN_IF_ERROR(setup_.library.check(setup_.library.call().destroy_op(op, comm.handle_),
                                                 "ncclRedOpDestroy"));
  }
  if (span != nullptr) {
    const MutexLock lock(mutex_);
    rows_->close(span.get());  // Before the event by which its end is known.
  }
  LIGHTCC_ASSIGN_OR_RETURN(job.event_, SharedEvent::record(gpu, stream));
  LIGHTCC_ASSIGN_OR_RETURN(
      job.passing_, notifier.notify(job.event_->get(), [wakeup = wakeup_] { wakeup->ring(); }));
  job.is_enqueued_.store(true, std::memory_order_release);
  return {};
}

// ---- What they share.

void NcclLauncher::begin_call(Call& call, Call what, Duration patience) {
  call = std::move(what);
  call.began = clock_.now();
  call.deadline = deadline_from_now(patience);
  if (is_idle_) {
    wakeup_->ring();
  }
}

void NcclLauncher::end_call(Call& call) {
  call = Call();
  progress_ = clock_.now();
  for_chores_.notify_all();
  changed_.notify_all();
  if (must_end_) {
    wakeup_->ring();
  }
}

// A call for a job that was late may still go on.
bool NcclLauncher::is_in_use(const NcclComm& comm) const {
  return comm.jobs_ > 0 || (launch_.job != nullptr && launch_.job->comm_.get() == &comm);
}

TimePoint NcclLauncher::deadline_from_now(Duration patience) const {
  return patience == Duration::zero() ? TimePoint::max() : clock_.now() + patience;
}

void NcclLauncher::finish(NcclJob& job, Status status) {
  if (job.has_ended()) {
    return;
  }
  job.status_ = std::move(status);
  job.has_ended_.store(true, std::memory_order_release);
  ring();
  progress_ = clock_.now();
  if (--job.comm_->jobs_ == 0) {
    for_chores_.notify_all();
  }
}

// One that is freed was finished before.
void NcclLauncher::finish(NcclComm& comm, Status status) {
  if (!comm.is_done_.load(std::memory_order_relaxed)) {
    comm.status_ = std::move(status);
    comm.is_done_.store(true, std::memory_order_release);
    ring();
  }
}

void NcclLauncher::end_span(std::unique_ptr<OpenSpan> span, const Status& status) {
  if (span != nullptr && rows_.has_value()) {
    rows_->end(std::move(span), status);
  }
}

}  // namespace lightcc::cuda
