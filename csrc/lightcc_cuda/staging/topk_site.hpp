// Top-k compression on one GPU: the calls of the driver that a launcher's thread makes for it.
//
// A step reads shards and writes their lists, and what is not sent stays in memory of the GPU
// (kernels/topk.hpp). The host learns from reports how much of the lists to fetch, and decides
// nothing else. It launches and copies for a whole table of tensors.
//
// Thread: the launcher's, with the context current. Its methods wait for the GPU, unless they say
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/saved_shard.hpp"
#include "lightcc/compression/residual/step_energy.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"

namespace lightcc::cuda {

/// The residual of one shard, in memory of a GPU, and what the host knows of it.
///
/// Lanes are there twice, so that a step can be undone; the host tells the GPU which count. Jobs
/// use it one after another, and between them whoever drives the progress loop.
struct TopkShard {
  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  // Both come and go in the order of the stream of its jobs.
  std::shared_ptr<std::byte> memory;    ///< Progress, and both residuals.
  std::shared_ptr<std::byte> velocity;  ///< Both; none without momentum correction.

  // As committed.
  std::uint64_t step = 0;  ///< Committed steps.
  lightcc::detail::TopkForecast forecast;
  bool has_velocity = false;
  std::uint32_t current = 0;  ///< Which of both counts.

  // The last step that began.
  bool next_has_velocity = false;
  bool is_reported = false;
  lightcc::detail::TopkForecast next_forecast;  ///< As reported, as is what follows.
  bool is_non_finite = false;
  StepEnergy energy;

  std::size_t lane_bytes() const { return numel * sizeof(float); }

  void begin(bool has_momentum) {
    next_has_velocity = has_momentum;
    is_reported = false;
  }
  /// Commits a step that has begun. Does nothing where it is not finite, or nothing is known of it.
  void commit() {
    if (!is_reported || is_non_finite) {
      return;
    }
    ++step;
    forecast = next_forecast;
    has_velocity = next_has_velocity;
    current = 1 - current;
  }
};

/// What HostResidual::compress() is given, of a shard in memory of the GPU.
struct SiteStep {
  std::shared_ptr<TopkShard> shard;
  const std::byte* input = nullptr;
  TopkRequest request;
  std::span<std::byte> list;  ///< In host memory.
  TopkOutcome* outcome = nullptr;
};

class TopkSite {
 public:
  /// All outlive it, and so does the stream of its calls.
  TopkSite(const Driver& driver, PinnedPool& pinned, const Result<SharedKernels>& kernels)
      : driver_(driver), pinned_(pinned), kernels_(kernels) {}

  // Errors of all: kSystem; kUnimplemented, the driver does not load the kernels.

  /// Makes a shard of what was saved; without a residual, that is zero.
  Status load_shard(TopkShard& shard, const SavedShard& saved, StreamHandle* stream);
  /// Appends what HostResidual::save() would.
  Status save_shard(const TopkShard& shard, Bytes& out, StreamHandle* stream) const;

  /// HostResidual::compress() of shards of one dtype, each of which occurs once. Copies to the host
  /// what the lists hold, and TopkProgress of each. Up to kMaxTopkTensors shards take as many
  /// launches and copies as one.
  Status compress(std::span<const SiteStep> steps, StreamHandle* stream);
  /// merge_lists() into memory of the GPU, for sums of one dtype: each of at most 64 lists, which
  /// parse_list() has checked, or of one that is not finite. Copies the lists to the GPU. As many
  /// sums take as many launches and copies as one.
  Status merge(std::span<const TopkSum> sums, StreamHandle* stream);

 private:
  struct StepTable;

  /// Memory of the GPU for one job.
  Result<Address> scratch(std::size_t bytes, StreamHandle* stream);
  Status add_velocity(TopkShard& shard, StreamHandle* stream) const;
  Status compress_table(std::span<const SiteStep> steps, StreamHandle* stream);
  Status launch_step(const StepTable& table, StreamHandle* stream) const;
  Status fetch_lists(const StepTable& table, std::byte* pinned, StreamHandle* stream) const;
  Status merge_table(std::span<const TopkSum> sums, StreamHandle* stream);
  /// Launches `lightcc_KERNEL`.
  template <typename Arguments>
  Status run(const std::string& kernel,
             u64 blocks,
             unsigned threads,
             const Arguments& arguments,
             StreamHandle* stream) const {
    FunctionHandle* const function = (*kernels_)->find("lightcc_" + kernel);
    return launch(driver_, function, static_cast<unsigned>(blocks), threads, stream, arguments);
  }

  const Driver& driver_;
  PinnedPool& pinned_;
  const Result<SharedKernels>& kernels_;
  std::shared_ptr<std::byte> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lightcc::cuda
