// How the steps of an operation come to the GPU: (launcher.hpp)
//
// NCCL puts a step on its stream some time after the call, and says when it has. Only then an event
// behind it means anything, and the next step is called. So ranks that call the same steps have
// them on their GPUs in the same order, whatever the communicators are.
#include <functional>
#include <utility>

#include "lightcc_cuda/nccl/launcher.hpp"
#include "lightcc_cuda/staging/stream_event.hpp"

namespace lightcc::cuda {

const Stream& NcclLauncher::stream_of(const NcclStep& step) {
  const NcclComm& comm = *step.comm;
  return step.is_aside && comm.aside_ != nullptr ? *comm.aside_ : *comm.stream_;
}

Result<bool> NcclLauncher::launch_steps(NcclJob& job) {
  for (; job.taken_ < job.steps_.size(); ++job.taken_) {
    NcclStep& step = job.steps_[job.taken_];
    const NcclComm& comm = *step.comm;
    if (comm.handle_ == nullptr || comm.stream_ == nullptr) {
      return make_error(ErrorCode::kInternal, "%s: the communicator is gone", step.what.c_str());
    }
    if (step.run) {
      LIGHTCC_RETURN_IF_ERROR(call_step(job, step));
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool is_taken, is_ready(comm.handle_, step.what.c_str()));
    if (!is_taken) {
      return false;
    }
    LIGHTCC_RETURN_IF_ERROR(finish_step(job, step));
  }
  return true;
}

Status NcclLauncher::call_step(NcclJob& job, NcclStep& step) {
  NcclComm& comm = *step.comm;
  comm.rest_ = nullptr;
  comm.end_ = nullptr;
  const auto wait_for = [&](EventHandle* event) {
    return driver_->check(driver_->call().wait_for_event(stream_of(step).get(), event, 0),
                          "cuStreamWaitEvent");
  };
  if (step.after.has_value() && &stream_of(job.steps_[*step.after]) != &stream_of(step)) {
    LIGHTCC_RETURN_IF_ERROR(wait_for(step_events_.at(*step.after).get()));
  }
  for (const auto& input : step.inputs) {
    for (EventHandle* const event : events_of(*input)) {
      LIGHTCC_RETURN_IF_ERROR(wait_for(event));
    }
  }
  if (job.trace_ != nullptr) {
    launch_spans_.push_back(
        rows_->begin({.trace = job.trace_, .what = step.what}, stream_of(step).get()));
  }
  const NcclOperation run = std::exchange(step.run, nullptr);
  return run(NcclCalls(setup_.library, *driver_, packing_, comm, stream_of(step)));
}

// NCCL has enqueued its part by now.
Status NcclLauncher::finish_step(NcclJob& job, const NcclStep& step) {
  NcclComm& comm = *step.comm;
  for (const NcclOp op : std::exchange(comm.ops_, {})) {
    LIGHTCC_RETURN_IF_ERROR(setup_.library.check(
        setup_.library.call().destroy_op(op, comm.handle_), "ncclRedOpDestroy", comm.handle_));
  }
  if (const auto rest = std::exchange(comm.rest_, nullptr); rest) {
    LIGHTCC_RETURN_IF_ERROR(rest());
  }
  if (!launch_spans_.empty()) {
    rows_->close(launch_spans_.back().get());  // Before the event by which its end is known.
  }
  if (step.is_awaited && setup_.begins_in_order) {
    LIGHTCC_ASSIGN_OR_RETURN(Event event, record_event(*driver_, stream_of(step).get()));
    step_events_.emplace(job.taken_, std::move(event));
  }
  return {};
}

}  // namespace lightcc::cuda
