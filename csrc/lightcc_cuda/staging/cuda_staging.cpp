#include "lightcc_cuda/staging/cuda_staging.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"

#include "lightcc_cuda/staging/launcher.hpp"

namespace lightcc::cuda {
namespace {

Address address_of(const std::byte* data) {
  return reinterpret_cast<Address>(data);  // NOLINT: of the GPU, never read here
}

Status copy_part_to_host(const GpuSite& gpu, const StagedBlock& block, const StagedPart& part) {
  return gpu.driver.check(gpu.driver.call().copy_to_host(
                              block.at(part), address_of(part.from), part.bytes, gpu.stream.get()),
                          "cuMemcpyDtoHAsync");
}

Status copy_part_to_device(const GpuSite& gpu, const StagedBlock& block, const StagedPart& part) {
  return gpu.driver.check(gpu.driver.call().copy_to_device(
                              address_of(part.to), block.at(part), part.bytes, gpu.stream.get()),
                          "cuMemcpyHtoDAsync");
}

/// Calls `copy` for each part that has the memory `End` on one GPU.
template <auto End>
Status for_each_part(const StagedBlock& block,
                     std::int32_t device,
                     const std::function<Status(const StagedPart&)>& copy) {
  for (const StagedPart& part : block.parts) {
    if (part.*End != nullptr && part.bytes > 0 && part.device == device) {
      LIGHTCC_RETURN_IF_ERROR(copy(part));
    }
  }
  return {};
}

template <auto End>
std::set<std::int32_t> devices_of(const StagedBlock& block) {
  std::set<std::int32_t> devices;
  for (const StagedPart& part : block.parts) {
    if (part.*End != nullptr && part.bytes > 0) {
      devices.insert(part.device);
    }
  }
  return devices;
}

/// Jobs on one GPU or several, and nothing else.
class JobsWork final : public Work {
 public:
  JobsWork() = default;
  JobsWork(const JobsWork&) = delete;
  JobsWork& operator=(const JobsWork&) = delete;
  ~JobsWork() override {
    for (const Posted& posted : all_) {
      posted.launcher->withdraw(posted.job);
    }
  }

  void post(std::shared_ptr<Launcher> launcher, std::function<Status(const GpuSite&)> run) {
    auto job = std::make_shared<Job>(std::move(run));
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

class CudaStaging final : public Staging {
 public:
  explicit CudaStaging(std::string file) : file_(std::move(file)) {}

  MemoryKind memory_kind() const override { return MemoryKind::kCuda; }

  Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes, std::int32_t device) override {
    const std::shared_ptr<Launcher> launcher = launcher_of(device, Direction::kToHost);
    std::shared_ptr<DeviceMemory> memory;
    LIGHTCC_RETURN_IF_ERROR(launcher->run([&](const GpuSite& gpu) -> Status {
      // The driver refuses to give nothing.
      LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory made,
                               allocate_device_memory(gpu.driver, std::max<std::size_t>(bytes, 1)));
      memory = std::make_shared<DeviceMemory>(std::move(made));
      return {};
    }));
    auto* const first = reinterpret_cast<std::byte*>(memory->get());  // NOLINT: of the GPU
    // Freed by the GPU's thread, as that may block.
    const auto give_back = [launcher, memory](std::byte* /*first*/) mutable {
      launcher->post(std::make_shared<Job>(
          [memory = std::move(memory)](const GpuSite& /*gpu*/) { return Status(); }));
    };
    return std::make_shared<OutputBuffer>(std::shared_ptr<std::byte>(first, give_back), bytes);
  }

  std::unique_ptr<Work> copy_to_host(std::shared_ptr<StagedBlock> block) override {
    auto work = std::make_unique<JobsWork>();
    const auto mutex = std::make_shared<Mutex>();  // Of the block's host memory.
    for (const std::int32_t device : devices_of<&StagedPart::from>(*block)) {
      work->post(launcher_of(device, Direction::kToHost),
                 [block, device, mutex](const GpuSite& gpu) -> Status {
                   {
                     const MutexLock lock(*mutex);
                     if (block->host == nullptr) {
                       LIGHTCC_ASSIGN_OR_RETURN(block->host, gpu.pinned.take(block->bytes));
                     }
                   }
                   return for_each_part<&StagedPart::from>(
                       *block, device, [&](const StagedPart& part) {
                         return copy_part_to_host(gpu, *block, part);
                       });
                 });
    }
    return work;
  }

  std::unique_ptr<Work> copy_to_device(std::shared_ptr<StagedBlock> block) override {
    auto work = std::make_unique<JobsWork>();
    for (const std::int32_t device : devices_of<&StagedPart::to>(*block)) {
      work->post(launcher_of(device, Direction::kToDevice), [block, device](const GpuSite& gpu) {
        return for_each_part<&StagedPart::to>(*block, device, [&](const StagedPart& part) {
          return copy_part_to_device(gpu, *block, part);
        });
      });
    }
    return work;
  }

 private:
  /// Each has a launcher of its own, as a GPU copies both ways at once.
  enum class Direction : std::uint8_t { kToHost, kToDevice };

  std::shared_ptr<Launcher> launcher_of(int device, Direction direction) LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::shared_ptr<Launcher>& launcher = launchers_[{device, direction}];
    if (launcher == nullptr) {
      launcher = std::make_shared<Launcher>(file_, device);
    }
    return launcher;
  }

  const std::string file_;
  Mutex mutex_;
  std::map<std::pair<int, Direction>, std::shared_ptr<Launcher>> launchers_
      LIGHTCC_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Staging> make_staging(std::string file) {
  return std::make_shared<CudaStaging>(std::move(file));
}

}  // namespace lightcc::cuda
