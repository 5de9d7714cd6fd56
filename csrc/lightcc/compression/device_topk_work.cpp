// Tensors go through the kernels in the parts of tensor_batches.hpp, one part after another. Each
// part is one exchange: what travels has a fixed size, so there is nothing to be asked before. What
// the block does begins together with it, and the device has all of it in order.
//
// Larger tensors come first. So those too small for a shard on each member are the last ones, and a
// member without one has its other shards in the places that all members have them in.
#include "lightcc/compression/device_topk_work.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "lightcc/collectives/all_works.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/tensor_batches.hpp"
#include "lightcc/compression/topk_item.hpp"

namespace lightcc {
namespace {

using Items = std::vector<std::unique_ptr<TopkItem>>;

/// Indices of tensors, in an order that follows from their sizes alone.
std::vector<std::size_t> larger_first(const std::vector<CompressedTensor>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return std::pair(tensors[b].span.count, a) < std::pair(tensors[a].span.count, b);
  });
  return order;
}

/// Each member's shards of a part, to where it has its own ones.
std::unique_ptr<Work> scatter(Group& block, const Items& items, const TensorBatch& part) {
  MemberSpans spans(static_cast<std::size_t>(block.size()));
  for (std::size_t i = part.first; i < part.end; ++i) {
    items[i]->add_to_scatter(spans);
  }
  return block.reduce_scatter_bucket(
      spans.spans(), spans.counts(), items[part.first]->scatter_reduction());
}

std::unique_ptr<Work> gather(Group& block, const Items& items, const TensorBatch& part) {
  GatheredSpans spans(static_cast<std::size_t>(block.size()));
  for (std::size_t i = part.first; i < part.end; ++i) {
    items[i]->add_results(spans);
  }
  return block.allgather_bucket(
      spans.shards.spans(), spans.shards.counts(), items[part.first]->dtype());
}

}  // namespace

std::unique_ptr<Work> make_device_topk_allreduce(DeviceTopk& device,
                                                 Group* block,
                                                 std::vector<CompressedTensor> tensors,
                                                 const CompressedJob& job) {
  std::vector<std::size_t> elements;
  const auto items = std::make_shared<Items>();
  for (const std::size_t i : larger_first(tensors)) {
    elements.push_back(tensors[i].span.count);
    items->push_back(std::make_unique<TopkItem>(std::move(tensors[i]), job));
  }
  const std::vector<TensorBatch> parts = cut_for_kernels(elements, device.max_tensors());
  std::vector<Sequence::Start> starts;
  for (std::size_t i = 0; i < items->size(); i = parts[i].end) {
    const TensorBatch part = parts[i];
    const auto steps = std::make_shared<std::vector<DeviceTopkStep>>();
    starts.emplace_back([&device, items, part, steps]() -> Result<std::unique_ptr<Work>> {
      for (std::size_t at = part.first; at < part.end; ++at) {
        LIGHTCC_RETURN_IF_ERROR((*items)[at]->begin_on_device(*steps));
      }
      return device.prepare(*steps);
    });
    starts.emplace_back([&device, block, items, part, steps]() -> Result<std::unique_ptr<Work>> {
      std::vector<std::unique_ptr<Work>> works;
      if (block != nullptr) {
        works.push_back(scatter(*block, *items, part));
      }
      LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> exchange, device.start(*steps));
      works.push_back(std::move(exchange));
      if (block != nullptr) {
        works.push_back(gather(*block, *items, part));
      }
      return all_of(std::move(works));
    });
    starts.emplace_back([items, part] {
      for (std::size_t at = part.first; at < part.end; ++at) {
        (*items)[at]->end_on_device();
        (*items)[at].reset();
      }
      return std::unique_ptr<Work>();
    });
  }
  return std::make_unique<Sequence>(std::move(starts));
}

}  // namespace lightcc
