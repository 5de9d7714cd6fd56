// What compression computes where a tensor lies, and keeps there. A plane brings its own for its
// kind of memory; all have the same bits (topk_state.hpp, merge.hpp).
//
// Lists are in host memory, as they travel. What returns a Work is done when the Work is, or at
// once where that is null. Everything else is done when it returns, or in order before whatever the
// plane's groups start afterwards.
//
// Thread: the one that drives the progress loop. Blocks: never.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/all_works.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/quantize.hpp"
#include "lightcc/compression/topk_list.hpp"
#include "lightcc/compression/topk_state.hpp"

namespace lightcc {

namespace detail {
inline Status only_topk_here() {
  return make_error(ErrorCode::kUnimplemented,
                    "int8 and int4 compression is for tensors in host memory; "
                    "others can be top-k compressed");
}
inline Status only_lists_here() {
  return make_error(ErrorCode::kUnimplemented,
                    "in this kind of memory, compression writes lists and adds them up, no more");
}
}  // namespace detail

/// What is remembered of one shard. The methods are those of TopkState. Other planes than the
/// host's may lack some, on all ranks alike: kUnimplemented.
class TopkShardState {
 public:
  TopkShardState() = default;
  TopkShardState(const TopkShardState&) = delete;
  TopkShardState& operator=(const TopkShardState&) = delete;
  virtual ~TopkShardState() = default;

  /// `shard` is of the plane's memory; null: zeros. `outcome` outlives the Work, and is set when
  /// that is done. `request.level` is the kernels' business.
  virtual Result<std::unique_ptr<Work>> compress(const std::byte* shard,
                                                 const TopkRequest& request,
                                                 std::span<std::byte> list,
                                                 TopkOutcome& outcome) = 0;
  /// out = shard + residual, for a step in which the shard travels dense; `shard` may be `out`, or
  /// null for zeros.
  virtual Result<std::unique_ptr<Work>> flush(const std::byte* /*shard*/,
                                              std::byte* /*out*/,
                                              double /*momentum*/) {
    return detail::only_lists_here();
  }
  /// TopkState::quantize(), shard null: zeros. `out` and `non_finite` outlive the Work, as all that
  /// quantize_sum() is given does; `parts` need not.
  virtual Result<std::unique_ptr<Work>> quantize(const std::byte* /*shard*/,
                                                 std::span<const ShardRange> /*parts*/,
                                                 std::optional<std::size_t> /*own*/,
                                                 Compressor /*compressor*/,
                                                 std::span<std::byte> /*out*/,
                                                 bool& /*non_finite*/) {
    return detail::only_topk_here();
  }
  virtual Result<std::unique_ptr<Work>> quantize_sum(
      std::span<const std::span<const std::byte>> /*parts*/,
      const ShardRange& /*range*/,
      Compressor /*compressor*/,
      std::span<std::byte> /*out*/,
      bool& /*non_finite*/) {
    return detail::only_topk_here();
  }
  virtual DataType dtype() const = 0;
  virtual std::size_t numel() const = 0;
  virtual void commit() = 0;
  virtual void rollback() = 0;
  virtual bool is_pending() const = 0;
  /// TopkState::energy(); nothing on a plane that does not measure it.
  virtual std::optional<StepEnergy> energy() const { return std::nullopt; }
  virtual Status scale(double /*factor*/) { return detail::only_lists_here(); }
  virtual Status save(Bytes& out) const = 0;
};

/// What TopkShardState::compress() is given.
struct TopkStep {
  TopkShardState* state = nullptr;
  const std::byte* shard = nullptr;
  TopkRequest request;
  std::span<std::byte> list;
  TopkOutcome* outcome = nullptr;
};

/// What TopkKernels::merge() is given.
struct TopkSum {
  std::vector<TopkListView> lists;
  std::byte* out = nullptr;
  std::size_t elements = 0;
  DataType dtype = DataType::kFloat32;
  double postscale = 1.0;
};

class TopkKernels {
 public:
  TopkKernels() = default;
  TopkKernels(const TopkKernels&) = delete;
  TopkKernels& operator=(const TopkKernels&) = delete;
  virtual ~TopkKernels() = default;

  /// Why it cannot compress a shard of so many elements among so many blocks by lists. Empty: it
  /// can.
  virtual std::string objection_to(std::size_t /*numel*/, std::size_t /*blocks*/) const {
    return {};
  }
  /// Whether a Work is under way: nobody rings when it can go on.
  virtual bool is_busy() const { return false; }
  /// Nothing kept back yet. kSystem: there is no memory for it.
  virtual Result<std::unique_ptr<TopkShardState>> make_state(DataType dtype, std::size_t numel) = 0;
  /// What save() wrote, on whatever plane. Errors: of TopkState::load(); kSystem.
  virtual Result<std::unique_ptr<TopkShardState>> load_state(std::span<const std::byte> saved) = 0;
  /// Memory of the plane's kind, beside that of tensors.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
  /// merge_lists() into `out`. What the lists point to outlives the Work, the views need not.
  virtual Result<std::unique_ptr<Work>> merge(std::span<const TopkListView> lists,
                                              std::byte* out,
                                              std::size_t elements,
                                              DataType dtype,
                                              double postscale) = 0;
  // The same for several tensors at once, of states of these kernels, no two of which are the same.
  // Neither steps nor sums need to outlive the call. Where it fails, states may be pending.
  virtual Result<std::unique_ptr<Work>> compress_all(std::span<const TopkStep> steps) {
    std::vector<std::unique_ptr<Work>> works;
    for (const TopkStep& step : steps) {
      LIGHTCC_ASSIGN_OR_RETURN(
          std::unique_ptr<Work> work,
          step.state->compress(step.shard, step.request, step.list, *step.outcome));
      if (work != nullptr) {
        works.push_back(std::move(work));
      }
    }
    return all_of(std::move(works));
  }
  virtual Result<std::unique_ptr<Work>> merge_all(std::span<const TopkSum> sums) {
    std::vector<std::unique_ptr<Work>> works;
    for (const TopkSum& sum : sums) {
      LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                               merge(sum.lists, sum.out, sum.elements, sum.dtype, sum.postscale));
      if (work != nullptr) {
        works.push_back(std::move(work));
      }
    }
    return all_of(std::move(works));
  }
  /// lightcc::dequantize() into `out`.
  virtual Status dequantize(std::span<const std::span<const std::byte>> /*parts*/,
                            std::size_t /*elements*/,
                            const QuantizedFormat& /*format*/,
                            double /*factor*/,
                            std::byte* /*out*/) {
    return detail::only_topk_here();
  }
  /// Sets `non_finite`, which outlives the Work, to whether an element is a NaN or an infinity.
  virtual Result<std::unique_ptr<Work>> check_finite(const std::byte* /*data*/,
                                                     std::size_t /*elements*/,
                                                     DataType /*dtype*/,
                                                     bool& /*non_finite*/) {
    return detail::only_lists_here();
  }
};

}  // namespace lightcc
