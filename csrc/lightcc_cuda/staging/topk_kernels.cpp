#include "lightcc_cuda/staging/topk_kernels.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"

#include "lightcc_cuda/kernels/merge.hpp"

namespace lightcc::cuda {
namespace {

Status is_pending_error(const char* what) {
  return make_error(ErrorCode::kInternal,
                    "%s while a step of top-k compression is neither committed nor rolled back",
                    what);
}

class CudaShardState final : public ShardResidual {
 public:
  CudaShardState(std::shared_ptr<Launcher> launcher, std::shared_ptr<TopkShard> shard)
      : launcher_(std::move(launcher)), shard_(std::move(shard)) {}

  /// The step is pending from now on, unless it is refused.
  Status begin(bool has_input, const TopkRequest& request) {
    if (pending_) {
      return is_pending_error("compressing");
    }
    if (!has_input || request.k == 0 || request.k > request.capacity ||
        request.capacity > numel()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "top-k compression of %zu elements of a GPU to %zu, at most %zu",
                        numel(),
                        request.k,
                        request.capacity);
    }
    pending_ = true;
    shard_->begin(request.momentum != 0.0);
    return {};
  }
  const std::shared_ptr<TopkShard>& shard() const { return shard_; }
  DataType dtype() const override { return shard_->dtype; }
  std::size_t numel() const override { return shard_->numel; }
  void commit() override {
    if (std::exchange(pending_, false)) {
      shard_->commit();
    }
  }
  void rollback() override { pending_ = false; }
  bool is_pending() const override { return pending_; }
  StepEnergy energy() const override { return shard_->energy; }
  /// Blocks: until the GPU has copied it.
  Status save(Bytes& out) const override {
    if (pending_) {
      return is_pending_error("saving");
    }
    return launcher_->run([this, &out](const GpuSite& gpu) {
      return gpu.topk.save_shard(*shard_, out, gpu.stream.get());
    });
  }

 private:
  std::shared_ptr<Launcher> launcher_;  // Its stream frees the shard.
  std::shared_ptr<TopkShard> shard_;
  bool pending_ = false;
};

class CudaTopkKernels final : public CompressionKernels {
 public:
  CudaTopkKernels(std::shared_ptr<Launcher> to_host,
                  std::shared_ptr<Launcher> to_device,
                  int device)
      : to_host_(std::move(to_host)), to_device_(std::move(to_device)), device_(device) {}

  std::string why_unsupported(DataType dtype, std::size_t numel, std::size_t blocks) const override
      LIGHTCC_EXCLUDES(mutex_) {
    if (dtype == DataType::kFloat64) {
      return "a tensor of float64; a GPU takes float32, float16 and bfloat16";
    }
    if (numel > kMaxTopkElements) {
      return "a shard of " + std::to_string(numel) + " elements; a GPU takes at most " +
             std::to_string(kMaxTopkElements);
    }
    if (blocks > kMaxMergeLists) {
      return "lists of " + std::to_string(blocks) + " hosts; a GPU merges at most " +
             std::to_string(kMaxMergeLists);
    }
    const MutexLock lock(mutex_);
    return objection_;
  }

  Result<std::unique_ptr<ShardResidual>> make_state(DataType dtype, std::size_t numel) override {
    if (numel == 0) {
      return host_kernels().make_state(dtype, numel);
    }
    SavedShard zeros;
    zeros.dtype = dtype;
    zeros.numel = numel;
    return state_of(zeros);
  }

  Result<std::unique_ptr<ShardResidual>> load_state(std::span<const std::byte> saved) override {
    LIGHTCC_ASSIGN_OR_RETURN(const SavedShard parsed, parse_saved_shard(saved));
    if (parsed.numel == 0) {
      return host_kernels().load_state(saved);
    }
    return state_of(parsed);
  }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    const Result<std::shared_ptr<std::byte>> memory = allocate_on(to_host_, bytes);
    return memory.ok() ? *memory : nullptr;
  }

  Result<std::unique_ptr<Work>> compress(std::span<const TopkStep> steps) override {
    std::vector<SiteStep> of_site;
    std::uint64_t bytes = 0;
    for (const TopkStep& step : steps) {
      const DataType dtype = steps.front().state->dtype();
      if (step.state->dtype() != dtype) {
        return make_error(ErrorCode::kInvalidArgument,
                          "top-k compression of %s and %s at once on a GPU",
                          data_type_name(dtype),
                          data_type_name(step.state->dtype()));
      }
      if (step.state->numel() == 0) {  // It is on the host, and done at once.
        LIGHTCC_RETURN_IF_ERROR(host_kernels().compress({&step, 1}).status());
        continue;
      }
      auto& state = static_cast<CudaShardState&>(*step.state);  // It was made here.
      LIGHTCC_RETURN_IF_ERROR(state.begin(step.shard != nullptr, step.request));
      of_site.push_back({.shard = state.shard(),
                         .input = step.shard,
                         .request = step.request,
                         .list = step.list,
                         .outcome = step.outcome});
      bytes += step.list.size();
    }
    if (of_site.empty()) {
      return std::unique_ptr<Work>();
    }
    auto work = std::make_unique<JobsWork>();
    work->post(to_host_, "top-k", bytes, [of_site = std::move(of_site)](const GpuSite& gpu) {
      return gpu.topk.compress(of_site, gpu.stream.get());
    });
    return std::unique_ptr<Work>(std::move(work));
  }

  Result<std::unique_ptr<Work>> merge(std::span<const TopkSum> sums) override {
    std::vector<TopkSum> kept;
    std::uint64_t bytes = 0;
    for (const TopkSum& sum : sums) {
      if (sum.lists.empty() || sum.lists.size() > kMaxMergeLists) {
        return make_error(ErrorCode::kInvalidArgument,
                          "a sum of %zu lists on a GPU; allowed are 1 to %u",
                          sum.lists.size(),
                          kMaxMergeLists);
      }
      if (sum.dtype != sums.front().dtype) {
        return make_error(ErrorCode::kInvalidArgument,
                          "sums of %s and %s at once on a GPU",
                          data_type_name(sums.front().dtype),
                          data_type_name(sum.dtype));
      }
      if (sum.elements > 0) {
        kept.push_back(sum);
        bytes += sum.elements * element_size(sum.dtype);
      }
    }
    if (kept.empty()) {
      return std::unique_ptr<Work>();
    }
    auto work = std::make_unique<JobsWork>();
    work->post(to_device_, "sum of lists", bytes, [kept = std::move(kept)](const GpuSite& gpu) {
      return gpu.topk.merge(kept, gpu.stream.get());
    });
    return std::unique_ptr<Work>(std::move(work));
  }

 private:
  Result<std::unique_ptr<ShardResidual>> state_of(const SavedShard& saved) {
    if (saved.dtype == DataType::kFloat64) {
      return make_error(ErrorCode::kInvalidArgument, "top-k compression of float64 on a GPU");
    }
    auto shard = std::make_shared<TopkShard>();
    const Status begun = to_host_->run(
        [&](const GpuSite& gpu) { return gpu.topk.load_shard(*shard, saved, gpu.stream.get()); });
    if (!begun.ok()) {
      const MutexLock lock(mutex_);
      objection_ = "cuda:" + std::to_string(device_) + ": " + begun.message();
      return begun;
    }
    return std::unique_ptr<ShardResidual>(
        std::make_unique<CudaShardState>(to_host_, std::move(shard)));
  }

  std::shared_ptr<Launcher> to_host_;
  std::shared_ptr<Launcher> to_device_;
  const int device_;
  mutable Mutex mutex_;
  std::string objection_ LIGHTCC_GUARDED_BY(mutex_);  // To everything.
};

}  // namespace

std::unique_ptr<CompressionKernels> make_topk_kernels(std::shared_ptr<Launcher> to_host,
                                                      std::shared_ptr<Launcher> to_device,
                                                      int device) {
  return std::make_unique<CudaTopkKernels>(std::move(to_host), std::move(to_device), device);
}

}  // namespace lightcc::cuda
