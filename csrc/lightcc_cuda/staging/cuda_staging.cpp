#include "lightcc_cuda/staging/cuda_staging.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"

#include "lightcc_cuda/staging/launcher.hpp"
#include "lightcc_cuda/staging/packer.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"

namespace lightcc::cuda {
namespace {

/// How many bytes of the block are copied, by GPU.
std::map<std::int32_t, std::uint64_t> bytes_by_device(const StagedBlock& block, Copying direction) {
  std::map<std::int32_t, std::uint64_t> bytes;
  for (const StagedPart& part : block.parts) {
    if (gpu_end(part, direction) != nullptr && part.bytes > 0) {
      bytes[part.device] += part.bytes;
    }
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
    const std::shared_ptr<Launcher> to_host = launcher_of(device, Copying::kPack);
    to_host->post(nothing);
    (void)launcher_of(device, Copying::kUnpack)->run(nothing);
    (void)to_host->run(nothing);
  }

  Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes, std::int32_t device) override {
    const auto last_stream = std::make_shared<std::optional<std::uintptr_t>>();
    LIGHTCC_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory,
                             allocate_on(launcher_of(device, Copying::kPack), bytes, last_stream));
    return std::make_shared<OutputBuffer>(std::move(memory), bytes, last_stream);
  }

  CompressionKernels* topk_kernels(std::int32_t device) override {
    const std::shared_ptr<Launcher> to_host = launcher_of(device, Copying::kPack);
    const std::shared_ptr<Launcher> to_device = launcher_of(device, Copying::kUnpack);
    const MutexLock lock(mutex_);
    std::unique_ptr<CompressionKernels>& kernels = topk_kernels_[device];
    if (kernels == nullptr) {
      kernels = make_topk_kernels(to_host, to_device, device);
    }
    return kernels.get();
  }

  std::unique_ptr<Work> copy_to_host(std::shared_ptr<StagedBlock> block) override {
    auto bytes = bytes_by_device(*block, Copying::kPack);
    if (bytes.empty() && block->needs_host && !block->parts.empty()) {
      bytes[block->parts.front().device] = 0;
    }
    auto work = std::make_unique<JobsWork>();
    const auto mutex = std::make_shared<Mutex>();  // Guards the block's host memory.
    for (const auto& [device, of_device] : bytes) {
      const auto copy = [block, on = device, mutex](const GpuSite& gpu) -> Status {
        {
          const MutexLock lock(*mutex);
          if (block->host == nullptr) {
            LIGHTCC_ASSIGN_OR_RETURN(block->host, gpu.pinned.take(block->bytes));
          }
        }
        return gpu.packer.copy(*block, on, Copying::kPack, gpu.stream.get());
      };
      work->post(launcher_of(device, Copying::kPack), "copy to host", of_device, copy);
    }
    return work;
  }

  std::unique_ptr<Work> copy_to_device(std::shared_ptr<StagedBlock> block) override {
    auto work = std::make_unique<JobsWork>();
    for (const auto& [device, of_device] : bytes_by_device(*block, Copying::kUnpack)) {
      const auto copy = [block, on = device](const GpuSite& gpu) {
        return gpu.packer.copy(*block, on, Copying::kUnpack, gpu.stream.get());
      };
      work->post(launcher_of(device, Copying::kUnpack), "copy to device", of_device, copy);
    }
    return work;
  }

 private:
  /// Each direction has a launcher of its own, as a GPU copies both ways at once.
  std::shared_ptr<Launcher> launcher_of(int device, Copying direction) LIGHTCC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::shared_ptr<Launcher>& launcher = launchers_[{device, direction}];
    if (launcher == nullptr) {
      launcher = std::make_shared<Launcher>(
          file_, device, direction == Copying::kPack ? "to host" : "to device", [bells = bells_] {
            bells->ring();
          });
    }
    return launcher;
  }

  const std::string file_;
  const std::shared_ptr<Bells> bells_ = std::make_shared<Bells>();
  Mutex mutex_;
  std::map<std::pair<int, Copying>, std::shared_ptr<Launcher>> launchers_
      LIGHTCC_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<CompressionKernels>> topk_kernels_ LIGHTCC_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Staging> make_staging(std::string file) {
  return std::make_shared<CudaStaging>(std::move(file));
}

}  // namespace lightcc::cuda
