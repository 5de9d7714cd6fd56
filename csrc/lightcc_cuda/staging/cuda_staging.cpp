#include "lightcc_cuda/staging/cuda_staging.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"

#include "lightcc_cuda/staging/launcher.hpp"

namespace lightcc::cuda {
namespace {

Address address_of(const std::byte* data) {
  return reinterpret_cast<Address>(data);  // NOLINT: of the GPU, never read here
}

Status copy_tensor_to_host(const GpuSite& gpu, StagedTensor& tensor) {
  LIGHTCC_ASSIGN_OR_RETURN(tensor.host, gpu.pinned.take(tensor.bytes));
  return gpu.driver.check(
      gpu.driver.call().copy_to_host(
          tensor.host.get(), address_of(tensor.data), tensor.bytes, gpu.stream.get()),
      "cuMemcpyDtoHAsync");
}

Status copy_tensor_to_device(const GpuSite& gpu, const StagedTensor& tensor) {
  return gpu.driver.check(
      gpu.driver.call().copy_to_device(
          address_of(tensor.data), tensor.host.get(), tensor.bytes, gpu.stream.get()),
      "cuMemcpyHtoDAsync");
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
    const std::shared_ptr<Launcher> launcher = launcher_of(device);
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

  std::unique_ptr<Work> copy_to_host(std::shared_ptr<StagedTensors> tensors) override {
    return copy(tensors, &copy_tensor_to_host);
  }

  std::unique_ptr<Work> copy_to_device(std::shared_ptr<StagedTensors> tensors) override {
    return copy(tensors, &copy_tensor_to_device);
  }

 private:
  std::shared_ptr<Launcher> launcher_of(int device) LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::shared_ptr<Launcher>& launcher = launchers_[device];
    if (launcher == nullptr) {
      launcher = std::make_shared<Launcher>(file_, device);
    }
    return launcher;
  }

  template <typename CopyTensor>
  std::unique_ptr<Work> copy(const std::shared_ptr<StagedTensors>& tensors,
                             CopyTensor copy_tensor) {
    std::map<std::int32_t, std::vector<std::size_t>> of_device;
    for (std::size_t i = 0; i < tensors->size(); ++i) {
      const StagedTensor& tensor = (*tensors)[i];
      if (tensor.data != nullptr && tensor.bytes > 0) {
        of_device[tensor.device].push_back(i);
      }
    }
    auto work = std::make_unique<JobsWork>();
    for (const auto& [device, indices] : of_device) {
      work->post(launcher_of(device),
                 [tensors, own = indices, copy_tensor](const GpuSite& gpu) -> Status {
                   for (const std::size_t index : own) {
                     LIGHTCC_RETURN_IF_ERROR(copy_tensor(gpu, (*tensors)[index]));
                   }
                   return {};
                 });
    }
    return work;
  }

  const std::string file_;
  Mutex mutex_;
  std::map<int, std::shared_ptr<Launcher>> launchers_ LIGHTCC_GUARDED_BY(mutex_);  // By device.
};

}  // namespace

std::shared_ptr<Staging> make_staging(std::string file) {
  return std::make_shared<CudaStaging>(std::move(file));
}

}  // namespace lightcc::cuda
