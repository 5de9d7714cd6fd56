// A Work that is jobs of launchers, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/timeline/device_trace.hpp"

#include "lightcc_cuda/staging/launcher.hpp"

namespace lightcc::cuda {

class JobsWork final : public Work {
 public:
  JobsWork() = default;
  JobsWork(const JobsWork&) = delete;
  JobsWork& operator=(const JobsWork&) = delete;
  /// Blocks: until jobs that run have ended.
  ~JobsWork() override {
    for (const Posted& posted : all_) {
      posted.launcher->withdraw(posted.job);
    }
  }

  /// `what` and `bytes`: as a timeline says it, which leaves out what moves 0 bytes.
  void post(std::shared_ptr<Launcher> launcher,
            const char* what,
            std::optional<std::uint64_t> bytes,
            std::function<Status(const GpuSite&)> run) {
    TracedCall traced;
    if (std::shared_ptr<DeviceTrace> trace = current_device_trace();
        trace != nullptr && bytes != 0) {
      traced = {.trace = std::move(trace), .what = what, .bytes = bytes};
    }
    auto job = std::make_shared<Job>(std::move(run), std::move(traced));
    launcher->post(job);
    all_.push_back({std::move(launcher), std::move(job)});
  }

  Result<Progress> advance() override {
    for (const Posted& posted : all_) {
      if (!posted.job->is_done()) {
        return Progress::kIdle;
      }
      LIGHTCC_RETURN_IF_ERROR(posted.job->status());
    }
    return Progress::kDone;
  }

 private:
  struct Posted {
    std::shared_ptr<Launcher> launcher;
    std::shared_ptr<Job> job;
  };

  std::vector<Posted> all_;
};

}  // namespace lightcc::cuda
