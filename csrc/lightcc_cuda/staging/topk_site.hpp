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
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/saved_shard.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"
#include "lightcc_cuda/staging/topk_shard.hpp"

namespace lightcc::cuda {

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

  /// A residual of zero, or the saved one.
  Status make(TopkShard& shard, StreamHandle* stream);
  Status load_shard(TopkShard& shard, const SavedShard& saved, StreamHandle* stream);
  /// Appends what HostResidual::save() would. kInternal: the GPU is not where the host thinks it
  /// is.
  Status save_shard(TopkShard& shard, Bytes& out, StreamHandle* stream);

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
  struct SumTable;

  Status wait(StreamHandle* stream) const;
  Status copy_to_host(void* to, Address from, std::size_t bytes, StreamHandle* stream) const;
  Status copy_to_device(Address to,
                        const void* from,
                        std::size_t bytes,
                        StreamHandle* stream) const;
  Status fill(Address to, std::size_t bytes, StreamHandle* stream) const;
  /// Memory of the GPU for one job.
  Result<Address> scratch(std::size_t bytes, StreamHandle* stream);
  Status add_velocity(TopkShard& shard, StreamHandle* stream) const;
  /// What the host has to do about how the last step ended. Returns whether the GPU is to be told.
  static bool settle(TopkShard& shard);
  /// Tells the GPU that the last steps of `count` shards count, whose rows are the first ones of
  /// the table `rows`.
  Status commit(std::size_t count, Address rows, StreamHandle* stream) const;
  Status compress_table(StepTable& table, StreamHandle* stream);
  Status launch_step(const StepTable& table, StreamHandle* stream) const;
  Status fetch_lists(const StepTable& table,
                     Address memory,
                     std::byte* reports,
                     std::byte* packed,
                     StreamHandle* stream) const;
  static Result<std::size_t> read_reports(std::span<const SiteStep> steps,
                                          std::span<const TopkProgress> reports);
  Status merge_table(std::span<const TopkSum> sums, StreamHandle* stream);
  template <typename Arguments>
  Status run(const std::string& kernel,
             u64 blocks,
             unsigned threads,
             const Arguments& arguments,
             StreamHandle* stream) const {
    return launch(driver_,
                  (*kernels_)->find(kernel),
                  static_cast<unsigned>(blocks),
                  threads,
                  stream,
                  arguments);
  }

  const Driver& driver_;
  PinnedPool& pinned_;
  const Result<SharedKernels>& kernels_;
  std::shared_ptr<std::byte> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lightcc::cuda
