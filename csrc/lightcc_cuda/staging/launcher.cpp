#include "lightcc_cuda/staging/launcher.hpp"

#include <utility>

namespace lightcc::cuda {

Launcher::Launcher(std::string file, int device, std::string row, std::function<void()> ring)
    : file_(std::move(file)),
      device_(device),
      row_(std::move(row)),
      ring_(std::move(ring)),
      thread_([this] { serve(); }) {}

Launcher::~Launcher() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Job> Launcher::post(std::function<Status(const GpuSite&)> work, TracedCall traced) {
  auto job = std::make_shared<Job>();
  job->run = std::move(work);
  job->traced = std::move(traced);
  const MutexLock lock(mutex_);
  waiting_.push_back(job);
  changed_.notify_all();
  return job;
}

void Launcher::withdraw(const std::shared_ptr<Job>& job) {
  const MutexLock lock(mutex_);
  std::erase(waiting_, job);
  while (running_ == job.get()) {
    changed_.wait(mutex_);
  }
}

Status Launcher::run(std::function<Status(const GpuSite&)> work) {
  const std::shared_ptr<Job> job = post(std::move(work));
  const MutexLock lock(mutex_);
  while (!job->is_done) {
    changed_.wait(mutex_);
  }
  return job->status;
}

bool Launcher::await_job() {
  while (waiting_.empty() && !stops_) {
    changed_.wait(mutex_);
  }
  return !waiting_.empty();
}

void Launcher::serve() {
  {
    const MutexLock lock(mutex_);
    if (!await_job()) {
      return;
    }
  }
  const Status served = serve_gpu();
  if (!served.ok()) {
    serve_jobs([&](const Job& /*job*/) { return Status(served); });
  }
}

// OK: the launcher has stopped.
Status Launcher::serve_gpu() {
  LIGHTCC_ASSIGN_OR_RETURN(const Driver driver, Driver::open(file_));
  LIGHTCC_ASSIGN_OR_RETURN(const Context context, Context::retain(driver, device_));
  const CurrentContext current(context);
  LIGHTCC_RETURN_IF_ERROR(current.status());
  LIGHTCC_RETURN_IF_ERROR(keep_freed_memory(driver, context.device()));
  PinnedPool pinned(driver);
  LIGHTCC_ASSIGN_OR_RETURN(const Stream stream, Stream::create(driver));
  // Loaded before there is anything to do: a driver may wait for the GPU to be idle for that. Where
  // that fails, nothing is packed, and whoever wants to compress is told then.
  const Result<SharedKernels> kernels = shared_kernels(context);
  Packer packer(driver, kernels.ok() ? kernels->get() : nullptr);
  TopkSite topk(driver, pinned, kernels);
  const GpuSite site{
      .context = context, .stream = stream, .pinned = pinned, .packer = packer, .topk = topk};
  GpuRows rows(driver, device_, row_);
  serve_jobs([&](const Job& job) {
    std::unique_ptr<OpenSpan> span = rows.begin(job.traced, stream.get());
    Status status = job.run(site);
    rows.close(span.get());
    // What was queued before a failure uses memory that the caller may free.
    if (const Status drained = stream.wait(); status.ok()) {
      status = drained;
    }
    rows.end(std::move(span), status);
    return status;
  });
  return {};
}

void Launcher::serve_jobs(const std::function<Status(Job&)>& execute) {
  while (true) {
    std::shared_ptr<Job> job;
    {
      const MutexLock lock(mutex_);
      if (!await_job()) {
        return;
      }
      job = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = job.get();
    }
    job->status = execute(*job);
    job->run = nullptr;
    job->traced = {};
    {
      const MutexLock lock(mutex_);
      job->is_done = true;
      running_ = nullptr;
      changed_.notify_all();
    }
    ring_();
  }
}

JobsWork::~JobsWork() {
  for (const auto& [launcher, job] : posted_) {
    launcher->withdraw(job);
  }
}

void JobsWork::post(std::shared_ptr<Launcher> launcher,
                    const char* what,
                    std::uint64_t bytes,
                    std::function<Status(const GpuSite&)> run) {
  TracedCall traced;
  if (bytes != 0) {
    traced = {.trace = current_device_trace(), .what = what, .bytes = bytes};
  }
  std::shared_ptr<Job> job = launcher->post(std::move(run), std::move(traced));
  posted_.emplace_back(std::move(launcher), std::move(job));
}

Result<Progress> JobsWork::advance() {
  for (const auto& [launcher, job] : posted_) {
    if (!job->is_done) {
      return Progress::kIdle;
    }
    LIGHTCC_RETURN_IF_ERROR(job->status);
  }
  return Progress::kDone;
}

Result<std::shared_ptr<std::byte>> allocate_on(const std::shared_ptr<Launcher>& launcher,
                                               std::size_t bytes,
                                               OutputBuffer::LastStream last_stream) {
  const Context* context = nullptr;  // As long as the launcher.
  std::shared_ptr<std::byte> memory;
  LIGHTCC_RETURN_IF_ERROR(launcher->run([&](const GpuSite& gpu) -> Status {
    context = &gpu.context;
    LIGHTCC_ASSIGN_OR_RETURN(
        memory,
        allocate_in_order(context->driver(), bytes, gpu.stream.get(), std::move(last_stream)));
    return {};
  }));
  std::byte* const first = memory.get();
  auto give_back = [launcher, context, memory = std::move(memory)](auto*) mutable {
    const CurrentContext current(*context);
    memory = nullptr;
  };
  return std::shared_ptr<std::byte>(first, std::move(give_back));
}

}  // namespace lightcc::cuda
