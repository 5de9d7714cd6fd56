// Compression on the slow level only: top-k or quantised (quantized_item.hpp).
//
//   stage A  the members of a block reduce-scatter the tensor in memory, dense: a shard for each
//   stage B  each member adds what it kept back of its shard, writes the largest elements as a
//            list, or all in 8, 4 or 1 bits, and keeps the rest back (topk_state.hpp)
//   stage C  members with the same shard exchange what they wrote over the network, and add it up
//            in the order of their blocks (topk_exchange.hpp, quantized_item.hpp)
//   stage D  the members of a block gather the merged shards, or lists, in memory
//
// Per tensor, not per bucket. A tensor is cut into shards by itself, and what is kept back, the
// threshold and the number of elements sent belong to its shard. So the bucket it travels in does
// not matter to the result, nor the fusion strategy, nor the lane.
//
// Pipeline. Tensors follow each other through the stages: while lists of one are on the network,
// later ones are reduced and earlier ones gathered. Within a block one operation follows another in
// an order that its members share: with L tensors of lead A0 .. A(L-1) D0 A(L) D1 A(L+1) ... The
// groups between blocks take tensors in turn.
//
// Sizes. A list is as long as it comes out; so before lists travel, 16 bytes say how long they are,
// between blocks and within.
//
// Numbers. Replicas are the same bits: everybody merges the same lists in the same order. A ratio
// of 1 is exchanged dense and gives the bits of the two-level all-reduce. A list with a NaN or an
// infinity makes the tensor NaN on all ranks, and what was kept back stays as it was before: a step
// of mixed precision that overflows costs that step and nothing else.
//
// Memory. The shard of stage A lies in the tensor's own output. Lists are some percent of it.
//
// Not handled: the death of a member of the block (Works stay kIdle; liveness is the engine's).
#include "lightcc/compression/topk_work.hpp"

#include <cstddef>
#include <functional>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid_plan.hpp"
#include "lightcc/collectives/grid_stages.hpp"
#include "lightcc/collectives/grid_work.hpp"
#include "lightcc/compression/quantized_item.hpp"
#include "lightcc/compression/topk_item.hpp"

namespace lightcc {
namespace {

/// Several operations, each started when the one before is done.
class Sequence final : public Work {
 public:
  using Next = std::function<Result<std::unique_ptr<Work>>()>;

  /// `next` returns null when there is no further one.
  explicit Sequence(Next next) : next_(std::move(next)) {}

  Result<Progress> advance() override {
    if (work_ == nullptr) {
      LIGHTCC_ASSIGN_OR_RETURN(work_, next_());
      if (work_ == nullptr) {
        return Progress::kDone;
      }
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work_->advance());
    if (progress != Progress::kDone) {
      return progress;
    }
    work_.reset();
    return Progress::kMoved;
  }

 private:
  Next next_;
  std::unique_ptr<Work> work_;
};

std::unique_ptr<CompressedItem> make_item(CompressedTensor tensor, const CompressedJob& job) {
  if (job.spec.is_quantized()) {
    return std::make_unique<QuantizedItem>(std::move(tensor), job);
  }
  return std::make_unique<TopkItem>(std::move(tensor), job);
}

/// Tensors take the place of chunks.
class CompressedStages final : public PipelineStages {
 public:
  CompressedStages(std::vector<CompressedTensor> tensors,
                   const CompressedJob& job,
                   std::shared_ptr<GridState> grid,
                   Group* shards,
                   std::size_t lead)
      : PipelineStages(GridSchedule(tensors.size(), lead)),
        grid_(std::move(grid)),
        shards_(shards) {
    items_.reserve(tensors.size());
    for (CompressedTensor& tensor : tensors) {
      items_.push_back(make_item(std::move(tensor), job));
    }
  }

  std::unique_ptr<Work> start_scatter(std::size_t index) override {
    CompressedItem& item = *items_[index];
    return std::make_unique<Sequence>([this, &item] { return item.next_scatter(intra()); });
  }
  std::unique_ptr<Work> start_exchange(std::size_t index, Group& group) override {
    CompressedItem& item = *items_[index];
    return std::make_unique<Sequence>([&item, &group] { return item.next_exchange(group); });
  }
  std::unique_ptr<Work> start_gather(std::size_t index) override {
    return std::make_unique<Sequence>([this, index] {
      auto next = items_[index]->next_gather(intra());
      if (next.ok() && *next == nullptr) {
        items_[index].reset();  // Its buffers are needed no more.
      }
      return next;
    });
  }

 private:
  Group* intra() const {
    return shards_ != nullptr || grid_ == nullptr ? shards_ : grid_->levels.intra.get();
  }

  std::shared_ptr<GridState> grid_;
  Group* shards_;
  std::vector<std::unique_ptr<CompressedItem>> items_;
};

}  // namespace

std::unique_ptr<Work> make_compressed_allreduce(CompressedLevels levels,
                                                std::vector<CompressedTensor> tensors,
                                                const CompressedJob& job) {
  if (levels.grid == nullptr) {
    constexpr std::size_t kLead = 2;  // One on the network, one to follow.
    return std::make_unique<GridWork>(
        *levels.flat,
        std::make_unique<CompressedStages>(std::move(tensors), job, nullptr, nullptr, kLead));
  }
  if (!levels.grid->status.ok()) {
    return std::make_unique<FailedWork>(levels.grid->status);
  }
  auto stages = std::make_unique<CompressedStages>(
      std::move(tensors), job, levels.grid, levels.shards, levels.grid->lead());
  return std::make_unique<GridWork>(std::move(levels.grid), std::move(stages));
}

}  // namespace lightcc
