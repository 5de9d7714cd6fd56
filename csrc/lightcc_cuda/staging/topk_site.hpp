// Top-k compression on one GPU: the calls of the driver that a launcher's thread makes for it.
//
// A step reads a shard and writes its list, and what is not sent stays in memory of the GPU
// (kernels/topk.hpp). The host learns from the list's header how much of the list to fetch, and
// decides nothing else.
//
// Thread: the launcher's, with the context current. Its methods wait for the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/step_energy.hpp"
#include "lightcc/compression/topk_list.hpp"
#include "lightcc/compression/topk_saved.hpp"
#include "lightcc/compression/topk_state.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"

namespace lightcc::cuda {

/// What is kept back of one shard, in memory of the GPU. Jobs use it one after another, and between
/// them whoever drives the progress loop.
struct TopkShard {
  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  std::optional<DeviceMemory> memory;    ///< Progress, and both residuals.
  std::optional<DeviceMemory> velocity;  ///< Both; none without momentum correction.

  /// What became of the last step. The GPU is told with the next job.
  enum class Ending : std::uint8_t { kNotified, kCommitted, kUndone };
  Ending ending = Ending::kNotified;
  bool has_velocity = false;       ///< As committed.
  bool next_has_velocity = false;  ///< Of the last step.
  bool is_non_finite = false;      ///< The same.
  StepEnergy energy;               ///< The same.

  std::size_t lane_bytes() const { return dtype == DataType::kFloat64 ? 8 : 4; }
};

class TopkSite {
 public:
  /// Both outlive it.
  TopkSite(const Driver& driver, PinnedPool& pinned) : driver_(driver), pinned_(pinned) {}

  // Errors of all: kSystem; kUnimplemented, the driver does not load the kernels.

  /// Loads the kernels, if that was not done.
  Status load();
  /// Nothing kept back, or what was saved.
  Status make(TopkShard& shard, StreamHandle* stream);
  Status load_shard(TopkShard& shard, const SavedTopk& saved, StreamHandle* stream);
  /// Appends what TopkState::save() would.
  Status save_shard(TopkShard& shard, Bytes& out, StreamHandle* stream);

  /// TopkState::compress() of a shard in memory of the GPU. Copies to the host what the list holds,
  /// and TopkProgress.
  Status compress(TopkShard& shard,
                  const std::byte* input,
                  const TopkRequest& request,
                  std::span<std::byte> list,
                  TopkOutcome& outcome,
                  StreamHandle* stream);
  /// merge_lists() into memory of the GPU: of at most 64 lists, which parse_list() has checked, or
  /// of one that is not finite. Copies the lists to the GPU.
  Status merge(std::span<const TopkListView> lists,
               std::byte* out,
               std::size_t elements,
               DataType dtype,
               double postscale,
               StreamHandle* stream);

 private:
  struct Step;

  Status wait(StreamHandle* stream) const;
  Status copy_to_host(void* to, Address from, std::size_t bytes, StreamHandle* stream) const;
  Status copy_to_device(Address to,
                        const void* from,
                        std::size_t bytes,
                        StreamHandle* stream) const;
  Status fill(Address to, std::size_t bytes, StreamHandle* stream) const;
  /// Memory of the GPU for one job.
  Result<Address> scratch(std::size_t bytes);
  Status add_velocity(TopkShard& shard, StreamHandle* stream) const;
  /// What the host has to do about how the last step ended. Returns whether the GPU is to be told.
  static bool settle(TopkShard& shard);
  /// Tells the GPU that the last step counts. `rows`: its table, whose first row is the shard's.
  Status commit(TopkShard& shard, Address rows, StreamHandle* stream) const;
  Status launch_step(const Step& step, const TopkShard& shard, StreamHandle* stream) const;
  template <typename Arguments>
  Status run(const std::string& kernel,
             u64 blocks,
             unsigned threads,
             const Arguments& arguments,
             StreamHandle* stream) const;

  const Driver& driver_;
  PinnedPool& pinned_;
  std::optional<KernelTable> kernels_;
  std::optional<DeviceMemory> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lightcc::cuda
