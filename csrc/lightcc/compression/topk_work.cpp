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
// Batches. A GPU takes several tensors in as many launches as one. There the first of a batch
// brings all of it to its lists, in the place of its own A, and the last one brings all of it to
// its results, in the place of its own D. What a block does in between has the same order on all
// its members, as batches follow from the sizes of tensors. Between blocks nothing is another.
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
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/quantized_item.hpp"
#include "lightcc/compression/tensor_batches.hpp"
#include "lightcc/compression/topk_item.hpp"

namespace lightcc {
namespace {

/// An operation of several parts, as next_exchange() has.
class Parts final : public Work {
 public:
  using Next = std::function<Result<std::unique_ptr<Work>>()>;

  /// `next` returns null when there is no further one.
  explicit Parts(Next next) : next_(std::move(next)) {}

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

/// Of those in host memory alone, each is a batch: nothing is launched for them.
std::vector<TensorBatch> batches_of(const std::vector<CompressedTensor>& tensors,
                                    const CompressedJob& job,
                                    const Group* shards) {
  if (job.spec.is_quantized() || (shards == nullptr && !job.on_device)) {
    return cut_singly(tensors.size());
  }
  std::vector<std::size_t> elements;
  elements.reserve(tensors.size());
  for (const CompressedTensor& tensor : tensors) {
    elements.push_back(tensor.span.count);
  }
  return cut_in_batches(elements);
}

std::unique_ptr<CompressedItem> make_item(CompressedTensor tensor, const CompressedJob& job) {
  if (job.spec.is_quantized()) {
    return std::make_unique<QuantizedItem>(std::move(tensor), job);
  }
  return std::make_unique<TopkItem>(std::move(tensor), job);
}

/// Tensors take the place of chunks. The first of a batch brings all of it to its lists, and the
/// last one brings all of it to its results.
class CompressedStages final : public PipelineStages {
 public:
  CompressedStages(std::vector<CompressedTensor> tensors,
                   const CompressedJob& job,
                   std::shared_ptr<GridState> grid,
                   Group* shards,
                   std::size_t lead)
      : PipelineStages(GridSchedule(tensors.size(), lead)),
        grid_(std::move(grid)),
        shards_(shards),
        batches_(batches_of(tensors, job, shards)) {
    items_.reserve(tensors.size());
    for (CompressedTensor& tensor : tensors) {
      items_.push_back(make_item(std::move(tensor), job));
    }
  }

  std::unique_ptr<Work> start_scatter(std::size_t index) override {
    const TensorBatch batch = batches_[index];
    if (index != batch.first) {
      return nullptr;
    }
    std::vector<Sequence::Start> starts;
    add_for_each(starts, batch, &CompressedItem::scatter);
    add_calls(starts, batch, &CompressedItem::start_compression);
    starts.emplace_back([this, batch] {
      for (std::size_t i = batch.first; i < batch.end; ++i) {
        items_[i]->finish_compression();
      }
      return std::unique_ptr<Work>();
    });
    return std::make_unique<Sequence>(std::move(starts));
  }
  std::unique_ptr<Work> start_exchange(std::size_t index, Group& group) override {
    CompressedItem& item = *items_[index];
    return std::make_unique<Parts>([&item, &group] { return item.next_exchange(group); });
  }
  std::unique_ptr<Work> start_gather(std::size_t index) override {
    const TensorBatch batch = batches_[index];
    if (index + 1 != batch.end) {
      return nullptr;
    }
    std::vector<Sequence::Start> starts;
    add_for_each(starts, batch, &CompressedItem::gather_headers);
    add_calls(starts, batch, &CompressedItem::finish_shard);
    add_for_each(starts, batch, &CompressedItem::gather_results);
    if (intra() != nullptr) {
      add_calls(starts, batch, &CompressedItem::finish_tensor);
    }
    starts.emplace_back([this, batch] {
      for (std::size_t i = batch.first; i < batch.end; ++i) {
        items_[i].reset();  // Its buffers are needed no more.
      }
      return std::unique_ptr<Work>();
    });
    return std::make_unique<Sequence>(std::move(starts));
  }

 private:
  Group* intra() const {
    return shards_ != nullptr || grid_ == nullptr ? shards_ : grid_->levels.intra.get();
  }

  /// What members of a block do together, tensor by tensor.
  void add_for_each(std::vector<Sequence::Start>& starts,
                    const TensorBatch& batch,
                    std::unique_ptr<Work> (CompressedItem::*start)(Group&)) {
    for (std::size_t i = batch.first; intra() != nullptr && i < batch.end; ++i) {
      starts.emplace_back([this, i, start] {
        return Result<std::unique_ptr<Work>>((*items_[i].*start)(*intra()));
      });
    }
  }
  /// What kernels do for all tensors at once.
  void add_calls(std::vector<Sequence::Start>& starts,
                 const TensorBatch& batch,
                 Status (CompressedItem::*add)(KernelCalls&)) {
    starts.emplace_back([this, batch, add]() -> Result<std::unique_ptr<Work>> {
      KernelCalls calls;
      for (std::size_t i = batch.first; i < batch.end; ++i) {
        LIGHTCC_RETURN_IF_ERROR((*items_[i].*add)(calls));
      }
      return calls.start();
    });
  }

  std::shared_ptr<GridState> grid_;
  Group* shards_;
  std::vector<TensorBatch> batches_;
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
