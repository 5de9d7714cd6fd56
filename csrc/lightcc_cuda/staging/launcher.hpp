// Threads that make calls of the driver for one GPU each: they may block, and whoever drives the
// progress loop must not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/rows/gpu_rows.hpp"
#include "lightcc_cuda/staging/packer.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"

namespace lightcc::cuda {

/// What a job works with.
struct GpuSite {
  const Context& context;
  const Stream& stream;
  PinnedPool& pinned;
  Packer& packer;
  TopkSite& topk;
};

/// Something for a Launcher to do.
struct Job {
  std::function<Status(const GpuSite&)> run;
  TracedCall traced;  ///< What a timeline is to say of it.
  Status status;      ///< Once it is done.
  std::atomic<bool> is_done{false};
};

class Launcher {
 public:
  /// Opens the driver when there is a first job. `file`: of the driver. `row`: of a timeline.
  /// `ring` is called when a job is done, by the launcher's thread.
  Launcher(
      std::string file, int device, std::string row = "stream", std::function<void()> ring = [] {});
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  /// Jobs that wait still run. Blocks: until all have ended.
  ~Launcher();

  /// Jobs run one after another. A failure to use the GPU at all is every job's status.
  std::shared_ptr<Job> post(std::function<Status(const GpuSite&)> work, TracedCall traced = {})
      LIGHTCC_EXCLUDES(mutex_);
  /// Returns when the job neither runs nor will. Blocks: until it has ended, if it runs.
  void withdraw(const std::shared_ptr<Job>& job) LIGHTCC_EXCLUDES(mutex_);
  /// Posts and waits. Blocks: yes.
  Status run(std::function<Status(const GpuSite&)> work) LIGHTCC_EXCLUDES(mutex_);

 private:
  /// Waits for a job; false: the launcher stops, and none is left.
  bool await_job() LIGHTCC_REQUIRES(mutex_);
  void serve() LIGHTCC_EXCLUDES(mutex_);
  Status serve_gpu() LIGHTCC_EXCLUDES(mutex_);
  /// Calls `execute` for each job until the launcher stops.
  void serve_jobs(const std::function<Status(Job&)>& execute) LIGHTCC_EXCLUDES(mutex_);

  const std::string file_;
  const int device_;
  const std::string row_;
  const std::function<void()> ring_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> waiting_ LIGHTCC_GUARDED_BY(mutex_);
  Job* running_ LIGHTCC_GUARDED_BY(mutex_) = nullptr;
  bool stops_ LIGHTCC_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // The last, as it uses the others.
};

/// A Work that is jobs of launchers, and nothing else.
class JobsWork final : public Work {
 public:
  JobsWork() = default;
  JobsWork(const JobsWork&) = delete;
  JobsWork& operator=(const JobsWork&) = delete;
  /// Blocks: until jobs that run have ended.
  ~JobsWork() override;

  /// `what` and `bytes`: as a timeline says it, which leaves out what moves 0 bytes.
  void post(std::shared_ptr<Launcher> launcher,
            const char* what,
            std::uint64_t bytes,
            std::function<Status(const GpuSite&)> run);
  Result<Progress> advance() override;

 private:
  std::vector<std::pair<std::shared_ptr<Launcher>, std::shared_ptr<Job>>> posted_;
};

/// Memory of the launcher's GPU. Any thread may let go of it, and it goes behind what `last_stream`
/// has been given by then. Errors: kSystem. Blocks: until the jobs before have ended.
Result<std::shared_ptr<std::byte>> allocate_on(const std::shared_ptr<Launcher>& launcher,
                                               std::size_t bytes,
                                               OutputBuffer::LastStream last_stream = nullptr);

}  // namespace lightcc::cuda
