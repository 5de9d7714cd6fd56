#include "lightcc_cuda/nccl/comms.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "lightcc/base/half.hpp"
#include "lightcc/base/log.hpp"

#include "lightcc_cuda/nccl/launcher.hpp"
#include "lightcc_cuda/staging/stream_event.hpp"

namespace lightcc::cuda {
namespace {

/// The end of a job on the GPU.
class NcclJobEnd final : public DeviceEnd {
 public:
  NcclJobEnd(std::shared_ptr<NcclLauncher> launcher, std::shared_ptr<NcclJob> job)
      : launcher_(std::move(launcher)), job_(std::move(job)) {}

  Result<bool> order(std::uintptr_t stream) override {
    if (job_->has_ended()) {  // No stream has to wait any more.
      return job_->status().ok() ? Result<bool>(true) : job_->status();
    }
    return job_->event()->order(stream);
  }
  Result<bool> is_finished() override {
    if (!job_->has_ended()) {
      return false;
    }
    return job_->status().ok() ? Result<bool>(true) : job_->status();
  }
  bool uses_memory() override {
    return (!job_->has_ended() || !job_->status().ok()) && !launcher_->is_over();
  }

 private:
  std::shared_ptr<NcclLauncher> launcher_;
  std::shared_ptr<NcclJob> job_;
};

class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclLauncher> launcher, std::shared_ptr<NcclJob> job)
      : launcher_(std::move(launcher)), job_(std::move(job)) {}
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;
  ~NcclWork() override {
    const bool has_to_abort = !job_->has_ended() || !job_->status().ok();
    const bool was_lost = has_to_abort && launcher_->is_lost();
    if (has_to_abort && !launcher_->end(true) && !was_lost) {
      LIGHTCC_LOG(LogLevel::kWarning,
                  "NCCL does not end what it was told to abort; the GPU may still read and write "
                  "tensors of operations that have failed");
    }
  }

  Result<Progress> advance() override {
    if (!job_->has_ended()) {
      return Progress::kIdle;
    }
    LIGHTCC_RETURN_IF_ERROR(job_->status());
    return Progress::kDone;
  }
  std::shared_ptr<DeviceEnd> device_end() const override {
    return job_->event() == nullptr ? nullptr : std::make_shared<NcclJobEnd>(launcher_, job_);
  }

 private:
  std::shared_ptr<NcclLauncher> launcher_;
  std::shared_ptr<NcclJob> job_;
};

}  // namespace

Result<bool> NcclComm::is_made() const {
  if (!is_done_.load(std::memory_order_acquire)) {
    return false;
  }
  return status_.ok() ? Result<bool>(true) : status_;
}

// ---- What operations call.

Status NcclCalls::in_group(const std::function<Status()>& body) const {
  LIGHTCC_RETURN_IF_ERROR(check(nccl().group_start(), "ncclGroupStart"));
  const Status called = body();
  const Status ended = check(nccl().group_end(), "ncclGroupEnd");
  return called.ok() ? ended : called;
}

Result<std::byte*> NcclCalls::scratch(std::size_t bytes) const {
  if (comm_.scratch_ == nullptr || comm_.scratch_bytes_ < bytes) {
    comm_.scratch_ = nullptr;
    LIGHTCC_ASSIGN_OR_RETURN(comm_.scratch_, allocate_in_order(driver_, bytes, stream()));
    comm_.scratch_bytes_ = bytes;
  }
  return comm_.scratch_.get();
}

Result<std::byte*> NcclCalls::zeros(std::size_t bytes) const {
  LIGHTCC_ASSIGN_OR_RETURN(std::byte* const first, scratch(bytes));
  LIGHTCC_RETURN_IF_ERROR(driver_.fill(gpu_address(first), std::uint8_t{0}, bytes, stream()));
  return first;
}

Result<NcclOp> NcclCalls::scaled_sum(NcclType type, double factor) const {
  const auto single = static_cast<float>(factor);
  const std::uint16_t half =
      type == kNcclFloat16 ? float_to_half(single) : float_to_bfloat16(single);
  std::array<std::byte, sizeof(double)> scalar{};
  if (type == kNcclFloat64) {
    std::memcpy(scalar.data(), &factor, sizeof(factor));
  } else if (type == kNcclFloat32) {
    std::memcpy(scalar.data(), &single, sizeof(single));
  } else {
    std::memcpy(scalar.data(), &half, sizeof(half));
  }
  NcclOp op = kNcclSum;
  LIGHTCC_RETURN_IF_ERROR(
      check(nccl().make_scaled_sum(&op, scalar.data(), type, kNcclScalarOfHost, comm()),
            "ncclRedOpCreatePreMulSum"));
  comm_.ops_.push_back(op);
  return op;
}

Status NcclCalls::copy(std::byte* out, const std::byte* in, std::size_t bytes) const {
  return driver_.copy_on_device(gpu_address(out), gpu_address(in), bytes, stream());
}

// ---- The communicators of a world.

Result<std::unique_ptr<NcclComms>> NcclComms::make(const NcclSetup& setup) {
  const auto launcher = std::make_shared<NcclLauncher>(setup);
  std::unique_ptr<NcclComms> comms(new NcclComms(launcher));
  try {
    comms->thread_ = std::make_unique<std::thread>([launcher] {
      (void)::pthread_setname_np(::pthread_self(), "lightcc-nccl-w");
      launcher->serve();
    });
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kSystem, "cannot start a thread for NCCL: %s", error.what());
  }
  return comms;
}

NcclComms::~NcclComms() {
  if (thread_ == nullptr) {
    return;
  }
  if (launcher_->end(false)) {
    thread_->join();
  } else {
    thread_->detach();  // It waits for NCCL until the process ends.
  }
}

std::optional<Status> NcclComms::opened(Duration patience) const {
  return launcher_->opened(patience);
}

void NcclComms::abort() {
  (void)launcher_->end(true);
}

std::shared_ptr<NcclComm> NcclComms::split(int position, int part) {
  auto comm = std::make_shared<NcclComm>();
  launcher_->split(comm, position, part);
  return comm;
}

void NcclComms::free(std::shared_ptr<NcclComm> comm) {
  launcher_->free(std::move(comm));
}

std::unique_ptr<Work> NcclComms::start(std::shared_ptr<NcclComm> comm,
                                       std::string what,
                                       NcclOperation run) {
  if (!copies_.empty()) {
    run = [copies = std::exchange(copies_, {}), run = std::move(run)](const NcclCalls& calls) {
      for (const Copy& copy : copies) {
        LIGHTCC_RETURN_IF_ERROR(calls.copy(copy.out, copy.in, copy.bytes));
      }
      return run(calls);
    };
  }
  const auto job = std::make_shared<NcclJob>(
      std::move(comm), std::move(what), std::move(run), std::exchange(inputs_, {}));
  launcher_->post(job);
  return std::make_unique<NcclWork>(launcher_, job);
}

void NcclComms::copy_before_next(std::byte* out, const std::byte* in, std::size_t bytes) {
  copies_.push_back({.out = out, .in = in, .bytes = bytes});
}

bool NcclComms::begin_behind(const std::vector<std::shared_ptr<ReadyEvent>>& inputs) {
  const bool are_of_gpus =
      std::ranges::all_of(inputs, [](const auto& input) { return is_of_gpus(*input); });
  if (are_of_gpus) {
    inputs_ = inputs;
  }
  return are_of_gpus;
}

}  // namespace lightcc::cuda
