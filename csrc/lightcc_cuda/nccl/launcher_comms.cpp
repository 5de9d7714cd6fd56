// The thread of NcclLauncher that makes and frees communicators.
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "lightcc/base/log.hpp"

#include "lightcc_cuda/nccl/launcher.hpp"

namespace lightcc::cuda {

void NcclLauncher::keep_comms(const std::shared_ptr<const SharedGpu>& gpu) {
  (void)::pthread_setname_np(::pthread_self(), "lightcc-nccl-cm");
  const CurrentContext current(gpu->context());
  Status ready = current.status().ok() ? make_world() : current.status();
  if (!ready.ok()) {
    const MutexLock lock(mutex_);
    failure_ = failure_.ok() ? std::move(ready) : failure_;
    changed_.notify_all();
    wakeup_->ring();
    return;
  }
  while (const std::optional<Chore> chore = next_chore()) {
    const Status done = chore->frees ? free_comm(chore->comm) : split_off(*chore, gpu->driver());
    const MutexLock lock(mutex_);
    end_call(chore_);
    finish(*chore->comm, done);
    if (!is_ending_) {
      chores_.pop_front();
    }
    if (!done.ok() && !chore->frees) {
      failure_ = failure_.ok() ? done : failure_;
      wakeup_->ring();
    } else if (!done.ok() && !is_ending_ && !std::exchange(has_warned_, true)) {
      LIGHTCC_LOG(LogLevel::kWarning,
                  "rank %d could not free a communicator of NCCL: %s",
                  setup_.rank,
                  done.message().c_str());
    }
  }
}

Status NcclLauncher::make_world() {
  {
    const MutexLock lock(mutex_);
    if (is_ending_) {
      return was_aborted("NCCL");
    }
    begin_call(chore_, {.what = "ncclCommInitRankConfig"}, setup_.start_patience);
  }
  NcclConfig config;
  NcclHandle* handle = nullptr;
  const NcclCode code =
      setup_.library.call().init(&handle, setup_.size, setup_.id, setup_.rank, &config);
  {
    const MutexLock lock(mutex_);
    end_call(chore_);
  }
  LIGHTCC_RETURN_IF_ERROR(setup_.library.check(code, "ncclCommInitRankConfig"));
  const auto world = std::make_shared<NcclComm>();
  LIGHTCC_RETURN_IF_ERROR(keep(world, handle));
  const MutexLock lock(mutex_);
  world_ = world;
  changed_.notify_all();
  return {};
}

std::optional<NcclLauncher::Chore> NcclLauncher::next_chore() {
  const MutexLock lock(mutex_);
  // What was enqueued may be done for whoever has asked for it: that has a deadline of its own.
  while (!is_ending_ &&
         (chores_.empty() || (chores_.front().frees && is_in_use(*chores_.front().comm)))) {
    for_chores_.wait(mutex_);
  }
  if (is_ending_) {
    return std::nullopt;
  }
  const Chore& chore = chores_.front();
  begin_call(chore_,
             {.what = chore.frees ? "ncclCommFinalize" : "ncclCommSplit"},
             chore.frees ? setup_.operation_patience : setup_.start_patience);
  return chore;
}

Status NcclLauncher::split_off(const Chore& chore, const Driver& driver) {
  const bool is_member = chore.position >= 0;
  if (is_member) {
    LIGHTCC_ASSIGN_OR_RETURN(chore.comm->stream_, stream_for_comm(driver));
  }
  NcclConfig config;
  NcclHandle* made = nullptr;
  NcclHandle* world = nullptr;
  {
    const MutexLock lock(mutex_);
    world = world_->handle_;  // Null: it was aborted, and NCCL refuses it.
  }
  Status done =
      setup_.library.check(setup_.library.call().split(world,
                                                       is_member ? chore.part : kNcclNoColor,
                                                       std::max(chore.position, 0),
                                                       &made,
                                                       &config),
                           "ncclCommSplit");
  if (done.ok() && is_member) {
    done = keep(chore.comm, made);
  }
  if (!done.ok()) {
    chore.comm->stream_.reset();  // Whoever keeps it may outlive the driver.
  }
  return done;
}

Result<std::shared_ptr<Stream>> NcclLauncher::stream_for_comm(const Driver& driver) {
  std::shared_ptr<Stream> stream = stream_.lock();
  if (stream == nullptr || setup_.begins_in_order) {
    LIGHTCC_ASSIGN_OR_RETURN(Stream made, Stream::create(driver));
    stream = std::make_shared<Stream>(std::move(made));
    stream_ = stream;
  }
  return stream;
}

Status NcclLauncher::keep(const std::shared_ptr<NcclComm>& comm, NcclHandle* handle) {
  {
    const MutexLock lock(mutex_);
    if (!is_ending_) {
      comm->handle_ = handle;
      comms_.push_back(comm);
      return {};
    }
  }
  (void)setup_.library.call().abort(handle);
  return was_aborted("the communicator");
}

Status NcclLauncher::free_comm(const std::shared_ptr<NcclComm>& comm) {
  const NcclFunctions& nccl = setup_.library.call();
  Status freed;
  if (NcclHandle* const handle = comm->handle_; handle != nullptr) {
    freed = setup_.library.check(nccl.finalize(handle), "ncclCommFinalize");
    // From here on it is not aborted. It may wait for what runs on others, which are.
    if (comm->handle_.exchange(nullptr) == nullptr) {
      return was_aborted("the communicator");
    }
    if (freed.ok()) {
      freed = setup_.library.check(nccl.destroy(handle), "ncclCommDestroy");
    } else {
      (void)nccl.abort(handle);
    }
  }
  comm->scratch_ = nullptr;
  comm->stream_.reset();
  const MutexLock lock(mutex_);
  std::erase(comms_, comm);
  return freed;
}

}  // namespace lightcc::cuda
