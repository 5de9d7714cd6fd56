#include "lightcc_cuda/staging/cuda_staging.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"

#include "lightcc_cuda/staging/jobs_work.hpp"
#include "lightcc_cuda/staging/launcher.hpp"
#include "lightcc_cuda/staging/packer.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"

namespace lightcc::cuda {
namespace {

Status copy_part_to_host(const GpuSite& gpu, const StagedBlock& block, const StagedPart& part) {
  return gpu.driver.check(gpu.driver.call().copy_to_host(
                              block.at(part), gpu_address(part.from), part.bytes, gpu.stream.get()),
                          "cuMemcpyDtoHAsync");
}

Status copy_part_to_device(const GpuSite& gpu, const StagedBlock& block, const StagedPart& part) {
  return gpu.driver.check(gpu.driver.call().copy_to_device(
                              gpu_address(part.to), block.at(part), part.bytes, gpu.stream.get()),
                          "cuMemcpyHtoDAsync");
}

/// How parts are copied in one direction: one of them, and a run of many.
struct CopyWay {
  Status (*one)(const GpuSite& gpu, const StagedBlock& block, const StagedPart& part);
  Status (Packer::*many)(const StagedBlock& block, PackedRun run, StreamHandle* stream);
};
constexpr CopyWay kCopyToHost{.one = copy_part_to_host, .many = &Packer::copy_to_host};
constexpr CopyWay kCopyToDevice{.one = copy_part_to_device, .many = &Packer::copy_to_device};

Status copy_run(const GpuSite& gpu, const StagedBlock& block, PackedRun run, const CopyWay& way) {
  if (gpu.packer.packs(run, gpu.stream.get())) {
    return (gpu.packer.*way.many)(block, run, gpu.stream.get());
  }
  for (const StagedPart* const part : run) {
    LIGHTCC_RETURN_IF_ERROR(way.one(gpu, block, *part));
  }
  return {};
}

/// Copies each part that has the memory `End` on one GPU, small neighbours together.
template <auto End>
Status copy_parts(const GpuSite& gpu,
                  const StagedBlock& block,
                  std::int32_t device,
                  const CopyWay& way) {
  std::vector<const StagedPart*> run;
  for (const StagedPart& part : block.parts) {
    if (part.bytes == 0) {
      continue;
    }
    const bool is_copied = part.*End != nullptr && part.device == device;
    if (!is_copied || !Packer::may_follow(run, part)) {
      LIGHTCC_RETURN_IF_ERROR(copy_run(gpu, block, run, way));
      run.clear();
    }
    if (is_copied) {
      run.push_back(&part);
    }
  }
  return copy_run(gpu, block, run, way);
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

/// Bytes of the parts that have the memory `End` on one GPU.
template <auto End>
std::uint64_t bytes_on(const StagedBlock& block, std::int32_t device) {
  std::uint64_t bytes = 0;
  for (const StagedPart& part : block.parts) {
    bytes += part.*End != nullptr && part.device == device ? part.bytes : 0;
  }
  return bytes;
}

/// The bells of all worlds that stage here. Thread: any.
class Bells {
 public:
  void add(const std::weak_ptr<LoopBell>& bell) LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::erase_if(bells_, [](const auto& it) { return it.expired(); });
    bells_.push_back(bell);
  }
  void ring() LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    for (const auto& one : bells_) {
      if (const std::shared_ptr<LoopBell> bell = one.lock(); bell != nullptr) {
        bell->ring();
      }
    }
  }

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<LoopBell>> bells_ LIGHTCC_GUARDED_BY(mutex_);
};

class CudaStaging final : public Staging {
 public:
  explicit CudaStaging(std::string file) : file_(std::move(file)) {}

  MemoryKind memory_kind() const override { return MemoryKind::kCuda; }
  void connect(const std::weak_ptr<LoopBell>& bell) override { bells_->add(bell); }

  void prepare(std::int32_t device) override {
    const auto nothing = [](const GpuSite& /*gpu*/) { return Status(); };
    const std::shared_ptr<Launcher> to_host = launcher_of(device, Direction::kToHost);
    to_host->post(std::make_shared<Job>(nothing));
    (void)launcher_of(device, Direction::kToDevice)->run(nothing);
    (void)to_host->run(nothing);
  }

  Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes, std::int32_t device) override {
    const auto last_stream = std::make_shared<std::optional<std::uintptr_t>>();
    LIGHTCC_ASSIGN_OR_RETURN(
        std::shared_ptr<std::byte> memory,
        allocate_on(launcher_of(device, Direction::kToHost), bytes, last_stream));
    return std::make_shared<OutputBuffer>(std::move(memory), bytes, last_stream);
  }

  CompressionKernels* topk_kernels(std::int32_t device) override {
    const std::shared_ptr<Launcher> to_host = launcher_of(device, Direction::kToHost);
    const std::shared_ptr<Launcher> to_device = launcher_of(device, Direction::kToDevice);
    const MutexLock lock(mutex_);
    std::unique_ptr<CudaTopkKernels>& kernels = topk_kernels_[device];
    if (kernels == nullptr) {
      kernels = std::make_unique<CudaTopkKernels>(to_host, to_device, device);
    }
    return kernels.get();
  }

  std::unique_ptr<Work> copy_to_host(std::shared_ptr<StagedBlock> block) override {
    auto work = std::make_unique<JobsWork>();
    const auto mutex = std::make_shared<Mutex>();  // Guards the block's host memory.
    std::set<std::int32_t> devices = devices_of<&StagedPart::from>(*block);
    if (devices.empty() && block->needs_host && !block->parts.empty()) {
      devices.insert(block->parts.front().device);
    }
    for (const std::int32_t device : devices) {
      work->post(launcher_of(device, Direction::kToHost),
                 "copy to host",
                 bytes_on<&StagedPart::from>(*block, device),
                 [block, device, mutex](const GpuSite& gpu) -> Status {
                   {
                     const MutexLock lock(*mutex);
                     if (block->host == nullptr) {
                       LIGHTCC_ASSIGN_OR_RETURN(block->host, gpu.pinned.take(block->bytes));
                     }
                   }
                   return copy_parts<&StagedPart::from>(gpu, *block, device, kCopyToHost);
                 });
    }
    return work;
  }

  std::unique_ptr<Work> copy_to_device(std::shared_ptr<StagedBlock> block) override {
    auto work = std::make_unique<JobsWork>();
    for (const std::int32_t device : devices_of<&StagedPart::to>(*block)) {
      work->post(launcher_of(device, Direction::kToDevice),
                 "copy to device",
                 bytes_on<&StagedPart::to>(*block, device),
                 [block, device](const GpuSite& gpu) {
                   return copy_parts<&StagedPart::to>(gpu, *block, device, kCopyToDevice);
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
      launcher =
          std::make_shared<Launcher>(file_,
                                     device,
                                     direction == Direction::kToHost ? "to host" : "to device",
                                     [bells = bells_] { bells->ring(); });
    }
    return launcher;
  }

  const std::string file_;
  const std::shared_ptr<Bells> bells_ = std::make_shared<Bells>();
  Mutex mutex_;
  std::map<std::pair<int, Direction>, std::shared_ptr<Launcher>> launchers_
      LIGHTCC_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<CudaTopkKernels>> topk_kernels_ LIGHTCC_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Staging> make_staging(std::string file) {
  return std::make_shared<CudaStaging>(std::move(file));
}

}  // namespace lightcc::cuda
