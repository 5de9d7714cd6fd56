// Compression on the slow level only: top-k or quantised (quantized_item.hpp).
//
//   stage A  the members of a block reduce-scatter the tensor in memory, dense: a shard for each
//   stage B  each member adds the residual of its shard, writes the largest elements as a
//            list, or all in 8 or 4 bits, and keeps the rest back (host_residual.hpp)
//   stage C  members with the same shard exchange what they wrote over the network, and add it up
//            in the order of their blocks (topk_batch.hpp, quantized_batch.hpp)
//   stage D  the members of a block gather the merged shards, or lists, in memory
//
// Per tensor, not per bucket. A tensor is cut into shards by itself, and the residual, the
// threshold and the number of elements sent belong to its shard. So the bucket it travels in does
// not matter to the result, nor the fusion strategy, nor the lane.
//
// Batches. Between blocks, the tensors of a batch are one exchange, which takes as many operations
// as one tensor (topk_batch.hpp). So what an operation costs by itself does not grow with the
// tensors of a bucket, nor does it within a block. Batches follow from the sizes of tensors, so all
// ranks have the same ones (tensor_batches.hpp).
//
// Pipeline. Batches follow each other through the stages: while lists of one are on the network,
// later ones are reduced and earlier ones gathered. Within a block one operation follows another in
// an order that its members share: with L batches of lead A0 .. A(L-1) D0 A(L) D1 A(L+1) ... The
// groups between blocks take batches in turn.
//
// Series. A GPU takes several tensors in as many launches as one. There the first batch of a series
// brings all of it to its lists, in the place of its own A, and the last one brings all of it to
// its results, in the place of its own D. What a block does in between has the same order on all
// its members. Between blocks nothing is another.
//
// Sizes. A list is as long as it comes out; so before lists travel, 16 bytes for each say how long
// it is and whether it is finite. Within a block, a number for each list that is passed on.
//
// Numbers. Replicas are the same bits: everybody merges the same lists in the same order. A ratio
// of 1 is exchanged dense and gives the bits of the two-level all-reduce. A list with a NaN or an
// infinity makes the tensor NaN on all ranks, and the residual stays as it was before: a step
// of mixed precision that overflows costs that step and nothing else.
//
// Memory. The shard of stage A lies in the tensor's own output. Lists are some percent of it, and
// are there for `lead` batches at a time, or for a series.
//
// Not handled: the death of a member of the block (Works stay kIdle; liveness is the engine's).
#include "lightcc/compression/exchange/compressed_allreduce.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_work.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/exchange/tensor_batches.hpp"
#include "lightcc/compression/quantized/quantized_batch.hpp"
#include "lightcc/compression/quantized/quantized_item.hpp"
#include "lightcc/compression/topk/topk_batch.hpp"
#include "lightcc/compression/topk/topk_item.hpp"

namespace lightcc {
namespace {

/// Those that are exchanged together, one after another.
std::vector<TensorBatch> batches_of(const std::vector<CompressedTensor>& tensors,
                                    const CompressedJob& job) {
  std::vector<std::size_t> elements;
  elements.reserve(tensors.size());
  for (const CompressedTensor& tensor : tensors) {
    elements.push_back(tensor.span.count);
  }
  return cut_for_exchange(elements, job.exchange_elements);
}

/// For each batch, the tensors of its series: of the batches that are compressed together. In host
/// memory that is the batch alone, as nothing is launched for it.
std::vector<TensorBatch> series_of(const std::vector<TensorBatch>& batches,
                                   const std::vector<CompressedTensor>& tensors,
                                   bool launches) {
  if (!launches) {
    return batches;
  }
  std::vector<std::size_t> elements;
  elements.reserve(batches.size());
  for (const TensorBatch& batch : batches) {
    std::size_t sum = 0;
    for (std::size_t i = batch.first; i < batch.end; ++i) {
      sum += tensors[i].span.count;
    }
    elements.push_back(sum);
  }
  std::vector<TensorBatch> all = cut_for_kernels(elements);
  for (TensorBatch& series : all) {
    series = {.first = batches[series.first].first, .end = batches[series.end - 1].end};
  }
  return all;
}

/// What the members of a block say of the tensors of a series.
struct MemberHeaders {
  std::vector<std::size_t> starts;  // Where each tensor's numbers begin.
  std::vector<std::uint64_t> own;
  std::vector<std::uint64_t> all;  // What all members say, one after another.
};

/// Batches take the place of chunks. The first of a series brings all of it to its lists, and the
/// last one brings all of it to its results.
class CompressedStages final : public PipelineStages {
 public:
  CompressedStages(std::vector<TensorBatch> batches,
                   std::vector<CompressedTensor> tensors,
                   const CompressedJob& job,
                   std::shared_ptr<GridState> grid,
                   Group* shards,
                   std::size_t lead)
      : PipelineStages(ChunkSchedule(batches.size(), lead)),
        grid_(std::move(grid)),
        shards_(shards),
        stages_shards_(job.shards_apart),
        batches_(std::move(batches)),
        series_(series_of(
            batches_, tensors, !job.spec.is_quantized() && (shards != nullptr || job.on_device))) {
    items_.reserve(tensors.size());
    for (CompressedTensor& tensor : tensors) {
      if (job.spec.is_quantized()) {
        keep(std::make_unique<QuantizedItem>(std::move(tensor), job), quantized_);
      } else {
        keep(std::make_unique<TopkItem>(std::move(tensor), job), topk_);
      }
    }
  }

  std::unique_ptr<Work> start_scatter(std::size_t index) override {
    const TensorBatch series = series_[index];
    if (batches_[index].first != series.first) {
      return nullptr;
    }
    std::vector<Sequence::Start> starts;
    add_scatter(starts, series);
    add_calls(starts, series, &CompressedItem::encode);
    starts.emplace_back([this, series] {
      for (std::size_t i = series.first; i < series.end; ++i) {
        items_[i]->finish_encoding();
      }
      return std::unique_ptr<Work>();
    });
    return std::make_unique<Sequence>(std::move(starts));
  }
  std::unique_ptr<Work> start_exchange(std::size_t index, Group& group) override {
    const TensorBatch batch = batches_[index];
    const std::size_t tensors = batch.end - batch.first;
    return topk_.empty()
               ? make_quantized_exchange(std::span(quantized_).subspan(batch.first, tensors), group)
               : make_topk_exchange(std::span(topk_).subspan(batch.first, tensors), group);
  }
  std::unique_ptr<Work> start_gather(std::size_t index) override {
    const TensorBatch series = series_[index];
    if (batches_[index].end != series.end) {
      return nullptr;
    }
    std::vector<Sequence::Start> starts;
    add_headers(starts, series);
    add_calls(starts, series, &CompressedItem::finish_step);
    add_gather(starts, series);
    if (intra() != nullptr) {
      add_calls(starts, series, &CompressedItem::decode);
    }
    starts.emplace_back([this, series] {
      for (std::size_t i = series.first; i < series.end; ++i) {
        items_[i].reset();  // Its buffers are needed no more.
      }
      return std::unique_ptr<Work>();
    });
    return std::make_unique<Sequence>(std::move(starts));
  }

 private:
  template <typename Item>
  void keep(std::unique_ptr<Item> item, std::vector<Item*>& of_its_kind) {
    of_its_kind.push_back(item.get());
    items_.push_back(std::move(item));
  }

  Group* intra() const {
    return shards_ != nullptr || grid_ == nullptr ? shards_ : grid_->levels.intra.get();
  }

  /// What of a series the block moves in one operation.
  std::vector<TensorBatch> moved_together(const TensorBatch& series) const {
    if (!stages_shards_) {
      return {series};
    }
    std::vector<TensorBatch> single;  // Each has its copies.
    for (std::size_t i = series.first; i < series.end; ++i) {
      single.push_back({.first = i, .end = i + 1});
    }
    return single;
  }

  void add_scatter(std::vector<Sequence::Start>& starts, const TensorBatch& series) {
    if (intra() == nullptr) {
      return;
    }
    for (const TensorBatch& part : moved_together(series)) {
      starts.emplace_back([this, part] {
        MemberSpans spans(members());
        for (std::size_t i = part.first; i < part.end; ++i) {
          items_[i]->prepare(spans);
        }
        return Result<std::unique_ptr<Work>>(intra()->reduce_scatter_bucket(
            spans.spans(), spans.counts(), items_[part.first]->scatter_reduction()));
      });
    }
  }

  void add_gather(std::vector<Sequence::Start>& starts, const TensorBatch& series) {
    if (intra() == nullptr) {
      return;
    }
    for (const TensorBatch& part : moved_together(series)) {
      const auto spans = std::make_shared<GatheredSpans>(members());
      starts.emplace_back([this, part, spans] {
        for (std::size_t i = part.first; i < part.end; ++i) {
          items_[i]->add_results(*spans);
        }
        return gather(spans->shards, items_[part.first]->dtype());
      });
      starts.emplace_back([this, spans] { return gather(spans->lists, DataType::kUint8); });
    }
  }
  /// Null: there is nothing.
  Result<std::unique_ptr<Work>> gather(const MemberSpans& spans, DataType dtype) const {
    return spans.is_empty() ? std::unique_ptr<Work>()
                            : intra()->allgather_bucket(spans.spans(), spans.counts(), dtype);
  }

  std::size_t members() const { return static_cast<std::size_t>(intra()->size()); }

  /// What kernels do for all tensors at once.
  void add_calls(std::vector<Sequence::Start>& starts,
                 const TensorBatch& part,
                 Status (CompressedItem::*add)(KernelCalls&)) {
    starts.emplace_back([this, part, add]() -> Result<std::unique_ptr<Work>> {
      KernelCalls calls;
      for (std::size_t i = part.first; i < part.end; ++i) {
        LIGHTCC_RETURN_IF_ERROR((*items_[i].*add)(calls));
      }
      return calls.start();
    });
  }
  /// What members of a block say of their shards, of all tensors at once.
  void add_headers(std::vector<Sequence::Start>& starts, const TensorBatch& series) {
    if (intra() == nullptr) {
      return;
    }
    const auto headers = std::make_shared<MemberHeaders>();
    starts.emplace_back([this, series, headers] {
      for (std::size_t i = series.first; i < series.end; ++i) {
        headers->starts.push_back(headers->own.size());
        items_[i]->add_member_header(headers->own);
      }
      headers->all.resize(members() * headers->own.size());
      return Result<std::unique_ptr<Work>>(intra()->allgather(
          std::as_bytes(std::span(headers->own)).data(),
          std::as_writable_bytes(std::span(headers->all)).data(),
          std::vector<std::size_t>(members(), headers->own.size() * sizeof(std::uint64_t))));
    });
    starts.emplace_back([this, series, headers]() -> Result<std::unique_ptr<Work>> {
      for (std::size_t i = series.first; i < series.end; ++i) {
        LIGHTCC_RETURN_IF_ERROR(items_[i]->read_member_headers(
            headers->all.data() + headers->starts[i - series.first], headers->own.size()));
      }
      return std::unique_ptr<Work>();
    });
  }

  std::shared_ptr<GridState> grid_;
  Group* shards_;
  bool stages_shards_;
  std::vector<TensorBatch> batches_;  // That are exchanged together.
  std::vector<TensorBatch> series_;   // For each batch, those that are compressed with it.
  std::vector<std::unique_ptr<CompressedItem>> items_;
  std::vector<TopkItem*> topk_;            // The same, if they are these,
  std::vector<QuantizedItem*> quantized_;  // or these.
};

}  // namespace

std::unique_ptr<Work> make_compressed_allreduce(CompressedLevels levels,
                                                std::vector<CompressedTensor> tensors,
                                                const CompressedJob& job) {
  std::vector<TensorBatch> batches = batches_of(tensors, job);
  if (levels.grid == nullptr) {
    constexpr std::size_t kLead = 2;  // One on the network, one to follow.
    return std::make_unique<GridWork>(
        *levels.flat,
        std::make_unique<CompressedStages>(
            std::move(batches), std::move(tensors), job, nullptr, nullptr, kLead));
  }
  if (!levels.grid->status.ok()) {
    return std::make_unique<FailedWork>(levels.grid->status);
  }
  auto stages = std::make_unique<CompressedStages>(
      std::move(batches), std::move(tensors), job, levels.grid, levels.shards, levels.grid->lead());
  return std::make_unique<GridWork>(std::move(levels.grid), std::move(stages));
}

}  // namespace lightcc
